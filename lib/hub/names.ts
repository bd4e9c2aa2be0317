// Checks names of models, revisions and files before they become paths or URLs.

import { existsSync } from 'node:fs';
import { formatValue } from '../runtime/format-value.js';
import { argumentError } from '../runtime/input-errors.js';
import { required } from '../runtime/required.js';

/** Pattern of a part of a name. Source: the rules of the Hugging Face hub. */
const NAME_PART = /^\w(?:[\w.-]{0,94}\w)?$/;
/** Texts with one of these first parts are paths, not names. */
const PATH_FOLDERS = new Set(['models', 'datasets', 'spaces', 'model', 'dataset', 'space']);
const COMMIT = /^[0-9a-f]{40}$/;
/** Maximum lengths of a revision, of a file's path, and of a part of the path. */
const [REVISION_LENGTH, PATH_LENGTH, PART_LENGTH] = [255, 1024, 255];

/** Returns whether `text` can be the name of a model on the hub: "ORG/NAME" or "NAME". */
export function isModelName(text: string): boolean {
  const parts = text.split('/');
  if (parts.length > 2 || !parts.every((part) => NAME_PART.test(part))) return false;
  if (parts.length === 2 && PATH_FOLDERS.has(required(parts[0]))) return false;
  return !/--|\.\.|\.git$|\.ipynb$/.test(text);
}

/**
 * Returns whether `text` names a model on the hub, and is not a path on this machine. A name that
 * ends with .gguf is always a path.
 */
export function isRemote(text: string): boolean {
  return isModelName(text) && !text.endsWith('.gguf') && !existsSync(text);
}

/** Returns whether `revision` is a full commit id. The files of a commit never change. */
export const isCommit = (revision: string): boolean => COMMIT.test(revision);

/** Throws DS_ARGUMENT unless `name` is "ORG/NAME" or "NAME". */
export function requireModelName(op: string, name: unknown): asserts name is string {
  if (typeof name === 'string' && isModelName(name)) return;
  const hint = 'An example is "Qwen/Qwen3-0.6B".';
  throw argumentError(op, 'the name of a model of the hub, ORG/NAME', toPrintable(name), hint);
}

/** Throws DS_ARGUMENT unless `revision` can be a branch, a tag or a commit. */
export function requireRevision(op: string, revision: unknown): asserts revision is string {
  const isText = typeof revision === 'string' && revision.length <= REVISION_LENGTH;
  const hasParts = isText && revision.split('/').every((part) => /^[\w+@-][\w.+@-]*$/.test(part));
  if (hasParts && !revision.includes('..') && !revision.endsWith('.lock')) return;
  throw argumentError(op, 'a branch, a tag or a commit', toPrintable(revision));
}

/** Device names of Windows, which cannot be names of files there. */
const DEVICE = /^(con|prn|aux|nul|com[0-9]|lpt[0-9])(\.|$)/i;

/** Returns the reason why a file's path from a server is unsafe on any system, or null. */
export function findPathFault(path: unknown): string | null {
  if (typeof path !== 'string' || path === '') return 'no text';
  if (path.length > PATH_LENGTH) return `more than ${PATH_LENGTH} characters`;
  if (/[\p{Cc}\u2028\u2029]/u.test(path)) return 'a control character';
  if (path.includes('\\')) return 'a backslash';
  if (path.includes(':')) return 'a drive or a stream (":")';
  if (path.startsWith('/')) return 'a leading "/"';
  for (const part of path.split('/')) {
    if (part === '' || part === '.' || part === '..') return `the part "${part}"`;
    if (Buffer.byteLength(part) > PART_LENGTH) return `a part of more than ${PART_LENGTH} bytes`;
    if (/[. ]$/.test(part)) return 'a part that ends with a dot or a space';
    if (DEVICE.test(part)) return 'the name of a device';
  }
  return null;
}

/** Formats a server's or caller's text for messages, on one line of at most 120 characters. */
export function toPrintable(text: unknown): string {
  if (typeof text !== 'string') return formatValue(text).slice(0, 120);
  const plain = text.replaceAll(/[\p{Cc}\u2028\u2029]+/gu, ' ').trim();
  return JSON.stringify(plain.length > 120 ? `${plain.slice(0, 120)}..` : plain);
}
