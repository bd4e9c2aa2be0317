// Reads a configuration from a file (JSON or Hjson), base64 or an object, and remembers where each
// key stands.
import { readFileSync } from 'node:fs';

import { ConfigError, type Place } from './config-error.js';
import { HjsonError, type HjsonNode, type Member, parseHjson } from './hjson.js';
import { isSection, type Section } from './schema.js';

/** Keys and indices from the top of the file down to a value. */
export type Path = readonly (string | number)[];

/** A configuration as it was written, with the way back to its place in the file. */
export interface ConfigDocument {
  readonly value: Section;
  /** The path of the file, or "base64"; null for an object. */
  readonly file: string | null;
  /** Where the key at `path`, or the closest section around it, stands; null for an object. */
  readonly place: (path: Path) => Place | null;
  /** Whether the value at `path` is a string without quotes. */
  readonly unquoted: (path: Path) => boolean;
}

const MAX_DEPTH = 100;

export function dotted(path: Path): string {
  return path.join('.');
}

/**
 * `source` is a file, base64 of its contents (standard or URL-safe), or an object, which is copied.
 * Throws DS_CONFIG for an unreadable file, a syntax error, keys given twice, or anything that is
 * not an object.
 */
export function readDocument(source: unknown): ConfigDocument {
  if (typeof source === 'string') {
    const decoded = decodeBase64(source);
    return decoded === null
      ? parseConfig(readText(source), source)
      : parseConfig(decoded, 'base64');
  }
  if (!isSection(source)) {
    throw problem(null, {
      expected: 'the path of a ds_config.json, or an object',
      got: source === null ? 'null' : Array.isArray(source) ? 'an array' : typeof source,
    });
  }
  const value = copyJson(source, []) as Section;
  return { value, file: null, place: () => null, unquoted: () => false };
}

/**
 * The text behind a base64 string that holds a JSON object; null for anything else, such as a path.
 */
function decodeBase64(source: string): string | null {
  const compact = source.trim();
  if (!/^[\w+/-]+={0,2}$/.test(compact)) return null;
  const text = Buffer.from(compact, 'base64').toString('utf8').trim();
  return text.startsWith('{') && text.endsWith('}') ? text : null;
}

function readText(file: string): string {
  try {
    return readFileSync(file, 'utf8').replace(/^\uFEFF/, '');
  } catch (cause) {
    throw problem(null, {
      expected: 'the path of a readable ds_config.json',
      got: (cause as Error).message,
      hint: 'Check the path; it is relative to the working directory.',
      cause,
    });
  }
}

/** Parses `text`; `file` stands for it in messages. Throws DS_CONFIG with line and column. */
export function parseConfig(text: string, file: string): ConfigDocument {
  const root = parseText(text, file);
  if (root?.kind !== 'object') {
    const got = root ? `an ${root.kind}` : 'an empty file';
    throw problem(file, { expected: 'one JSON object', got });
  }
  refuseDuplicates(root, text, file);
  return {
    value: toValue(root) as Section,
    file,
    place: (path) => position(text, nearest(root, path)),
    unquoted: (path) => {
      const node = path.reduce<HjsonNode | null>((at, key) => at && child(at, key), root);
      return node?.kind === 'scalar' && node.unquoted;
    },
  };
}

function parseText(text: string, file: string): HjsonNode | null {
  try {
    return parseHjson(text);
  } catch (error) {
    if (!(error instanceof HjsonError)) throw error;
    const { expected, got, offset } = error;
    throw problem(file, { place: position(text, offset), expected, got });
  }
}

function problem(
  file: string | null,
  fields: { place?: Place; expected: string; got: string; hint?: string; cause?: unknown },
): ConfigError {
  return new ConfigError({ path: '', file, place: null, ...fields });
}

function member(node: HjsonNode, key: string | number): Member | undefined {
  return node.kind === 'object' ? node.members.find((m) => m.key === key) : undefined;
}

function child(node: HjsonNode, key: string | number): HjsonNode | null {
  if (node.kind === 'array') return node.items[Number(key)] ?? null;
  return member(node, key)?.value ?? null;
}

/** The offset of the key at `path`, or of the closest one around it that exists. */
function nearest(root: HjsonNode, path: Path): number {
  let node = root;
  let offset = root.offset;
  for (const key of path) {
    const next = child(node, key);
    if (!next) break;
    offset = member(node, key)?.offset ?? next.offset;
    node = next;
  }
  return offset;
}

function toValue(node: HjsonNode): unknown {
  if (node.kind === 'scalar') return node.value;
  if (node.kind === 'array') return node.items.map(toValue);
  return Object.fromEntries(node.members.map(({ key, value }) => [key, toValue(value)]));
}

/** One error for all keys that are given twice, at any depth. */
function refuseDuplicates(root: HjsonNode, text: string, file: string): void {
  const found: { path: string; place: Place; first: Place }[] = [];
  const visit = (node: HjsonNode, path: Path): void => {
    if (node.kind === 'array') node.items.forEach((item, i) => void visit(item, [...path, i]));
    if (node.kind !== 'object') return;
    const seen = new Map<string, number>();
    for (const { key, offset, value } of node.members) {
      const first = seen.get(key);
      if (first === undefined) seen.set(key, offset);
      else {
        const places = { place: position(text, offset), first: position(text, first) };
        found.push({ path: dotted([...path, key]), ...places });
      }
      visit(value, [...path, key]);
    }
  };
  visit(root, []);
  if (!found[0]) return;
  const lines = found.map(
    ({ path, place, first }) => `"${path}" at ${shown(place)} (first at ${shown(first)})`,
  );
  const [{ path, place }] = found as [(typeof found)[number]];
  const got = `duplicate keys: ${lines.join(', ')}`;
  const hint = 'Keep one of each.';
  throw new ConfigError({ path, file, place, expected: 'every key once', got, hint });
}

function position(text: string, offset: number): Place {
  const before = text.slice(0, offset);
  return { line: before.split('\n').length, column: offset - before.lastIndexOf('\n') };
}

function shown({ line, column }: Place): string {
  return `${line}:${column}`;
}

/** A deep copy; an undefined property is an absent one. Throws DS_CONFIG for an object in itself. */
function copyJson(value: unknown, path: Path): unknown {
  if (path.length > MAX_DEPTH) {
    const [expected, got] = [`at most ${MAX_DEPTH} levels of nesting`, 'more: a cycle?'];
    throw new ConfigError({
      path: dotted(path.slice(0, 3)),
      file: null,
      place: null,
      expected,
      got,
    });
  }
  if (Array.isArray(value)) return value.map((item, i) => copyJson(item, [...path, i]));
  if (!isSection(value)) return value;
  const entries = Object.entries(value).filter(([, item]) => item !== undefined);
  return Object.fromEntries(entries.map(([key, item]) => [key, copyJson(item, [...path, key])]));
}
