// Reads a configuration from a file (JSON or Hjson), base64 or an object, with the location of each
// key.

import { closeSync, constants, fstatSync, openSync, readSync, type Stats } from 'node:fs';
import { leading } from '../runtime/required.js';
import { errorMessage } from '../runtime/system-error.js';
import { ConfigError, type SourceLocation, shorten } from './config-error.js';
import {
  HjsonError,
  type HjsonNode,
  type LikelyMistakes,
  MAX_DEPTH,
  type Member,
  readHjson,
} from './hjson.js';
import { isSection, type Section } from './schema.js';
import { TextLines } from './text-lines.js';

/** Keys and indices from the top of the file down to a value. */
export type Path = readonly (string | number)[];

/** A configuration as the user wrote it, and the locations of its keys. */
export interface ConfigDocument {
  readonly value: Section;
  /** The path of the file, or "base64"; null for an object. */
  readonly file: string | null;
  /**
   * Returns the location of the key at `path`, or of the closest section around it; null for an
   * object.
   */
  readonly location: (path: Path) => SourceLocation | null;
  /** Returns whether the value at `path` is a string without quotes. */
  readonly unquoted: (path: Path) => boolean;
  /** Sentences about the text, and their locations. */
  readonly remarks: readonly { readonly location: SourceLocation; readonly text: string }[];
}

/** Maximum number of values in an inline configuration. A value that occurs twice counts twice. */
const MAX_VALUES = 1e5;

/** Maximum number of duplicate keys that one error lists. */
const MAX_LISTED = 20;

export function dottedPath(path: Path): string {
  return path.join('.');
}

/**
 * Reads `source`: a file, base64 of its contents (standard or URL-safe), or an object, which is
 * copied. Messages call such a file `name`. Throws DS_CONFIG for an unreadable file, a file that is
 * not regular or exceeds MAX_BYTES, a syntax error, duplicate keys, and a document other than an
 * object.
 */
export function readDocument(source: unknown, name = 'ds_config.json'): ConfigDocument {
  if (typeof source === 'string') {
    const decoded = decodeBase64(source);
    if (decoded === null) return parseConfig(readText(source, name), source);
    if (decoded.length <= MAX_BYTES) return parseConfig(decoded, 'base64');
    const got = `${decoded.length} characters`;
    throw problem('base64', { expected: `at most ${MAX_BYTES} characters`, got });
  }
  if (!isSection(source)) {
    throw problem(null, {
      expected: `the path of a ${name}, or an object`,
      got: source === null ? 'null' : Array.isArray(source) ? 'an array' : typeof source,
    });
  }
  const value = new Copier().copy(source, []) as Section;
  return { value, file: null, location: () => null, unquoted: () => false, remarks: [] };
}

/**
 * Returns the text of a base64 string that encodes a JSON object; null for any other string, such
 * as a path.
 */
function decodeBase64(source: string): string | null {
  const compact = source.trim();
  // A search for one other character: a pattern that repeats a class keeps a place to go back to
  // for each character, and overflows its stack on texts of some MiB.
  const digits = compact.replace(/={1,2}$/, '');
  if (digits === '' || /[^\w+/-]/.test(digits)) return null;
  const text = Buffer.from(compact, 'base64').toString('utf8').trim();
  return text.startsWith('{') && text.endsWith('}') ? text : null;
}

function readText(file: string, name: string): string {
  try {
    return readConfigText(file);
  } catch (cause) {
    if (cause instanceof UnfitFile) {
      const { expected, got } = cause;
      throw problem(file, { expected, got, hint: `Pass the path of the ${name} file.` });
    }
    throw problem(null, {
      expected: `the path of a readable ${name}`,
      got: shorten(errorMessage(cause)),
      hint: 'Check the path; it is relative to the working directory.',
      cause,
    });
  }
}

/** Parses `text`; `file` stands for it in messages. Throws DS_CONFIG with line and column. */
export function parseConfig(text: string, file: string): ConfigDocument {
  const lines = new TextLines(text);
  const { root, mistakes } = parseText(text, file, lines);
  if (root?.kind !== 'object') {
    const got = root ? `an ${root.kind}` : 'an empty file';
    throw problem(file, { expected: 'one JSON object', got });
  }
  refuseDuplicates(root, lines, file);
  const tree = new NodeTree(root);
  return {
    value: toValue(root) as Section,
    file,
    location: (path) => lines.at(tree.nearestOffset(path)),
    unquoted: (path) => {
      const node = tree.at(path);
      return node?.kind === 'scalar' && node.unquoted;
    },
    remarks: syntaxRemarks(root, mistakes, lines),
  };
}

/** Returns one remark for all comments with keys, and one for all missing commas. */
function syntaxRemarks(
  root: HjsonNode & { kind: 'object' },
  { commentsWithKeys, withoutComma }: LikelyMistakes,
  lines: TextLines,
): ConfigDocument['remarks'] {
  const remarks: { location: SourceLocation; text: string }[] = [];
  if (commentsWithKeys[0] !== undefined) {
    const keys = shortList(root.members.map(({ key }) => key));
    const at =
      commentsWithKeys.length > 1 ? `${commentsWithKeys.length} comments hold` : 'a comment holds';
    const text = `${at} the rest of a line, including keys. The keys that were read: ${keys}. Start a new line after each comment.`;
    remarks.push({ location: lines.at(commentsWithKeys[0]), text });
  }
  if (withoutComma[0]) {
    const list = withoutComma.map(({ key, offset }) => `${key} (${lineColumn(lines.at(offset))})`);
    const text = `commas are missing after ${shortList(list)}. The file is accepted; other readers of JSON need them.`;
    remarks.push({ location: lines.at(withoutComma[0].offset), text });
  }
  return remarks;
}

function shortList(items: readonly string[]): string {
  const more = items.length - MAX_LISTED;
  return [...items.slice(0, MAX_LISTED).map(shorten), ...(more > 0 ? [`${more} more`] : [])].join(
    ', ',
  );
}

function parseText(text: string, file: string, lines: TextLines): ReturnType<typeof readHjson> {
  try {
    return readHjson(text);
  } catch (error) {
    if (!(error instanceof HjsonError)) throw error;
    const { expected, got, hint, offset } = error;
    throw problem(file, { location: lines.at(offset), expected, got, hint });
  }
}

function problem(
  file: string | null,
  fields: {
    location?: SourceLocation;
    expected: string;
    got: string;
    hint?: string;
    cause?: unknown;
  },
): ConfigError {
  return new ConfigError({ path: '', file, location: null, ...fields });
}

/** Finds nodes by their paths. Indexes an object's members when they are first needed. */
class NodeTree {
  private readonly indices = new Map<HjsonNode, Map<string, Member>>();

  constructor(private readonly root: HjsonNode) {}

  at(path: Path): HjsonNode | null {
    return path.reduce<HjsonNode | null>((node, key) => node && this.child(node, key), this.root);
  }

  /** Returns the offset of the key at `path`, or of the closest section around it that exists. */
  nearestOffset(path: Path): number {
    let node = this.root;
    let offset = node.offset;
    for (const key of path) {
      const next = this.child(node, key);
      if (!next) break;
      offset = this.member(node, key)?.offset ?? next.offset;
      node = next;
    }
    return offset;
  }

  private child(node: HjsonNode, key: string | number): HjsonNode | null {
    if (node.kind === 'array') return node.items[Number(key)] ?? null;
    return this.member(node, key)?.value ?? null;
  }

  private member(node: HjsonNode, key: string | number): Member | undefined {
    if (node.kind !== 'object') return undefined;
    let index = this.indices.get(node);
    if (!index) {
      index = new Map(node.members.map((member) => [member.key, member]));
      this.indices.set(node, index);
    }
    return index.get(String(key));
  }
}

function toValue(node: HjsonNode): unknown {
  if (node.kind === 'scalar') return node.value;
  if (node.kind === 'array') return node.items.map(toValue);
  return Object.fromEntries(node.members.map(({ key, value }) => [key, toValue(value)]));
}

/** Throws one DS_CONFIG for all keys that are set twice, at any depth. */
function refuseDuplicates(root: HjsonNode, lines: TextLines, file: string): void {
  const duplicates: { path: string; location: SourceLocation; first: SourceLocation }[] = [];
  const visit = (node: HjsonNode, path: Path): void => {
    if (node.kind === 'array') node.items.forEach((item, i) => void visit(item, [...path, i]));
    if (node.kind !== 'object') return;
    const seen = new Map<string, number>();
    for (const { key, offset, value } of node.members) {
      const first = seen.get(key);
      if (first === undefined) seen.set(key, offset);
      else {
        const locations = { location: lines.at(offset), first: lines.at(first) };
        duplicates.push({ path: dottedPath([...path, key]), ...locations });
      }
      visit(value, [...path, key]);
    }
  };
  visit(root, []);
  if (!duplicates[0]) return;
  const listed = duplicates
    .slice(0, MAX_LISTED)
    .map(
      ({ path, location, first }) =>
        `"${shorten(path)}" at ${lineColumn(location)} (first at ${lineColumn(first)})`,
    );
  if (duplicates.length > MAX_LISTED) listed.push(`${duplicates.length - MAX_LISTED} more`);
  const [{ path, location }] = leading(duplicates, 1);
  const got = `duplicate keys: ${listed.join(', ')}`;
  const hint = 'Keep one of each.';
  throw new ConfigError({ path, file, location, expected: 'every key once', got, hint });
}

function lineColumn({ line, column }: SourceLocation): string {
  return `${line}:${column}`;
}

/** Copies an inline configuration, with a bound on depth, number of values and length of texts. */
class Copier {
  private count = 0;

  /**
   * Returns a deep copy without undefined properties. Throws DS_CONFIG for an object that contains
   * itself, for too many values, and for a string or key of more than MAX_BYTES characters.
   */
  copy(value: unknown, path: Path): unknown {
    if (path.length > MAX_DEPTH) {
      throw tooLargeError(
        path,
        `at most ${MAX_DEPTH} levels of nesting`,
        'more levels (an object may contain itself)',
      );
    }
    if (Array.isArray(value)) {
      this.take(value.length, path);
      return value.map((item, i) => this.copy(item, [...path, i]));
    }
    if (typeof value === 'string') requireLength(value, path);
    if (!isSection(value)) return value;
    for (const key of Object.keys(value)) requireLength(key, path);
    const entries = Object.entries(value).filter(([, item]) => item !== undefined);
    this.take(entries.length, path);
    return Object.fromEntries(entries.map(([key, item]) => [key, this.copy(item, [...path, key])]));
  }

  private take(values: number, path: Path): void {
    this.count += values;
    if (this.count > MAX_VALUES)
      throw tooLargeError(path, `at most ${MAX_VALUES} values`, 'more values');
  }
}

function requireLength(text: string, path: Path): void {
  if (text.length <= MAX_BYTES) return;
  throw tooLargeError(path, `at most ${MAX_BYTES} characters`, `${text.length} characters`);
}

function tooLargeError(path: Path, expected: string, got: string): ConfigError {
  const where = dottedPath(path.slice(0, 3));
  return new ConfigError({ path: where, file: null, location: null, expected, got });
}

// Reads the text of a configuration file. It must be a regular file of bounded size.

/**
 * Maximum size of a configuration in bytes, and of a string or key of an object in characters. A
 * pattern may keep several words for each character, and V8 ends it after 64 MiB of them: in a
 * process with much code it compiles patterns without the optimization that avoids this.
 */
export const MAX_BYTES = 2 ** 20;

/** The error for a file that exists but cannot be a configuration. */
class UnfitFile extends Error {
  constructor(
    readonly expected: string,
    readonly got: string,
  ) {
    super(`expected ${expected}, got ${got}`);
  }
}

/**
 * Returns the text of `file`, without a byte order mark. Opening never waits (for a writer of a
 * pipe) and reading ends at MAX_BYTES (of a device or of a file that grows). Throws UnfitFile, and
 * errors of the file system.
 */
function readConfigText(file: string): string {
  const handle = openSync(file, constants.O_RDONLY | constants.O_NONBLOCK);
  try {
    const stats = fstatSync(handle);
    if (!stats.isFile()) throw new UnfitFile('a regular file', kindOf(stats));
    const bytes = readUpTo(handle, MAX_BYTES + 1);
    if (bytes.length > MAX_BYTES) {
      const size = stats.size > MAX_BYTES ? `${stats.size} bytes` : 'more';
      throw new UnfitFile(`a file of at most ${MAX_BYTES} bytes`, size);
    }
    return bytes.toString('utf8').replace(/^\uFEFF/, '');
  } finally {
    closeSync(handle);
  }
}

function readUpTo(handle: number, max: number): Buffer {
  const chunks: Buffer[] = [];
  for (let total = 0; total < max; ) {
    const chunk = Buffer.allocUnsafe(Math.min(max - total, 65536));
    const count = readSync(handle, chunk);
    if (count === 0) break;
    chunks.push(chunk.subarray(0, count));
    total += count;
  }
  return Buffer.concat(chunks);
}

function kindOf(stats: Stats): string {
  if (stats.isDirectory()) return 'a folder';
  if (stats.isFIFO()) return 'a pipe';
  return stats.isSocket() ? 'a socket' : 'a device';
}
