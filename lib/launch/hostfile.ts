// Parses hostfiles: one line "host slots=N" per host, as DeepSpeed and Open MPI write them.

import { existsSync, readFileSync } from 'node:fs';
import { errorCode } from '../runtime/system-error.js';

import { refuse } from './argument-error.js';

/** The default hostfile of DeepSpeed. */
const DEFAULT_HOSTFILE = '/job/hostfile';

/** A host and its slots for ranks: GPU numbers, or indices on the CPU. */
export interface Node {
  host: string;
  slots: readonly string[];
}

/** A destination that ssh cannot mistake for an option. */
const HOST = /^[A-Za-z0-9_[][\w.@:[\]-]*$/;
const MAX_SLOTS = 4096;

/**
 * Returns the nodes of the hostfile `path`. Returns null without `path` if the default file does
 * not exist. Throws DS_ARGUMENT with the line for a missing file, no hosts, a repeated host, or a
 * line other than "host slots=N".
 */
export function readHostfile(path: string | undefined): Node[] | null {
  const file = path ?? DEFAULT_HOSTFILE;
  if (path === undefined && !existsSync(file)) return null;
  let text: string;
  try {
    text = readFileSync(file, 'utf8');
  } catch (error) {
    const reason = errorCode(error) ?? String(error);
    return refuse('--hostfile', 'a file that can be read', `${file} (${reason})`);
  }
  return parseHostfile(text, file);
}

/**
 * Parses the lines of `text`; "#" begins a comment. `file` names the file in errors. Throws
 * DS_ARGUMENT as readHostfile() does.
 */
export function parseHostfile(text: string, file: string): Node[] {
  const seen = new Map<string, number>();
  const nodes: Node[] = [];
  text.split(/\r?\n/).forEach((line, index) => {
    const content = line.replace(/#.*/, '').trim();
    if (content === '') return;
    const location = `${file}:${index + 1}`;
    const [, host = '', slots] = /^(\S+)\s+slots\s*=\s*(\d+)$/.exec(content) ?? [];
    const count = Number(slots);
    if (!HOST.test(host) || !(count >= 1 && count <= MAX_SLOTS)) {
      refuse(location, `"host slots=N", N from 1 to ${MAX_SLOTS}`, JSON.stringify(line));
    }
    const first = seen.get(host);
    if (first !== undefined) {
      refuse(
        location,
        'every host once',
        `${host} again (first in line ${first})`,
        'Write one line for the host, with all its slots.',
      );
    }
    seen.set(host, index + 1);
    nodes.push({ host, slots: Array.from({ length: count }, (_, slot) => String(slot)) });
  });
  if (nodes.length === 0) refuse(file, 'at least one line "host slots=N"', 'none');
  return nodes;
}
