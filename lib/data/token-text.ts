// Encodes text files, folders of text files, and JSON Lines files to one sequence of tokens.

import { closeSync, openSync, readdirSync, readFileSync, readSync, statSync } from 'node:fs';
import { basename, join } from 'node:path';
import { formatValue } from '../runtime/format-value.js';
import { argumentError, dataError } from '../runtime/input-errors.js';
import { namesOf, readOptions } from '../runtime/options.js';
import { requireInteger } from '../runtime/require-number.js';
import { requireType } from '../runtime/require-type.js';
import { required } from '../runtime/required.js';
import { errorMessage } from '../runtime/system-error.js';
import { unreadableFileError } from './token-window.js';

/** Returns the token numbers of a text. */
export type Encode = (text: string) => ArrayLike<number>;

/** Options of TokenDataset.fromText(). */
export interface TextSource {
  /** A text file, or a folder. The text files of a folder are read in the order of their paths. */
  path: string;
  /** Pattern for names of files in a folder. Default: all files. */
  match?: RegExp;
  /** Returns the token numbers of a text. */
  encode: Encode;
  /** Tokens per window. */
  seq: number;
  /** Token that follows every file, such as GPT-2's 50256. Default: none. */
  endOfText?: number;
}

/** Options of TokenDataset.fromJsonl(). */
export interface JsonlSource {
  /** A file with one JSON object per line. Empty lines are skipped. */
  path: string;
  /** The key of the text in each object. Default: "text". */
  key?: string;
  /** Returns the token numbers of a text. */
  encode: Encode;
  /** Tokens per window. */
  seq: number;
  /** Token that follows the text of every line, such as GPT-2's 50256. Default: none. */
  endOfText?: number;
}

/**
 * Returns the checked options of TokenDataset.fromText(). Throws DS_ARGUMENT for unknown or invalid
 * options.
 */
export function readTextSource(given: TextSource): TextSource {
  const op = 'TokenDataset.fromText';
  const source = readOptions(op, given, namesOf.TextSource);
  requireSourceOptions(op, source);
  const { match } = source;
  if (match === undefined || match instanceof RegExp) return source;
  const [expected, got] = ['a regular expression', formatValue(match)];
  throw argumentError(`${op} match`, expected, got);
}

/**
 * Returns the checked options of TokenDataset.fromJsonl(). Throws DS_ARGUMENT for unknown or
 * invalid options.
 */
export function readJsonlSource(given: JsonlSource): JsonlSource {
  const op = 'TokenDataset.fromJsonl';
  const source = readOptions(op, given, namesOf.JsonlSource);
  requireSourceOptions(op, source);
  if (source.key !== undefined) requireType(`${op} key`, source.key, 'string');
  return source;
}

function requireSourceOptions(
  op: string,
  { path, encode, endOfText }: TextSource | JsonlSource,
): void {
  requireType(`${op} path`, path, 'string');
  requireType(`${op} encode`, encode, 'function');
  if (endOfText !== undefined) requireInteger(`${op} endOfText`, endOfText, 0);
}

/** Returns all tokens of text files, in shared memory. Throws DS_DATA with the name of the file. */
export function tokenizeText(source: TextSource): Int32Array {
  const tokens = new TokenList(source.endOfText);
  for (const file of listTextFiles(source)) tokens.append(source.encode(readText(file)), file);
  return tokens.finish();
}

/**
 * Returns all tokens of a JSON Lines file, in shared memory. Throws DS_DATA with the file and the
 * line.
 */
export function tokenizeJsonl(source: JsonlSource): Int32Array {
  const { path, key = 'text', encode, endOfText } = source;
  const tokens = new TokenList(endOfText);
  let number = 0;
  for (const bytes of readLines(path)) {
    const location = `${path}:${++number}`;
    const line = decodeUtf8(bytes, location, 'Convert it to UTF-8.');
    if (line.trim() !== '') tokens.append(encode(parseLine(line, key, location)), location);
  }
  return tokens.finish();
}

function parseLine(line: string, key: string, location: string): string {
  let value: unknown;
  try {
    value = JSON.parse(line);
  } catch (cause) {
    throw dataError(location, 'a JSON object', errorMessage(cause));
  }
  const isObject = typeof value === 'object' && value !== null && Object.hasOwn(value, key);
  const text = isObject ? (value as Record<string, unknown>)[key] : undefined;
  if (typeof text === 'string') return text;
  const got = isObject ? `${JSON.stringify(text)}` : line;
  const hint = 'Set `key` to the key of the text.';
  throw dataError(location, `an object with a string "${key}"`, got.slice(0, 80), hint);
}

/** A growing list of tokens. `endOfText`: the token to append after each text, or undefined. */
class TokenList {
  private tokens = new Int32Array(1 << 16);
  private length = 0;

  constructor(private readonly endOfText: number | undefined) {}

  append(more: ArrayLike<number>, location: string): void {
    const needed = this.length + more.length + 1;
    if (needed > this.tokens.length) {
      const larger = new Int32Array(Math.max(needed, 2 * this.tokens.length));
      larger.set(this.tokens);
      this.tokens = larger;
    }
    for (let i = 0; i < more.length; ++i) this.push(required(more[i]), location);
    if (this.endOfText !== undefined) this.push(this.endOfText, location);
  }

  private push(token: number, location: string): void {
    if ((token | 0) !== token || token < 0) {
      throw dataError(location, 'tokens that are integers in [0, 2^31)', String(token));
    }
    this.tokens[this.length++] = token;
  }

  finish(): Int32Array {
    const shared = new Int32Array(new SharedArrayBuffer(4 * this.length));
    shared.set(this.tokens.subarray(0, this.length));
    return shared;
  }
}

function listTextFiles({ path, match }: TextSource): string[] {
  try {
    if (!statSync(path).isDirectory()) return [path];
    const entries = readdirSync(path, { recursive: true, withFileTypes: true });
    const files = entries
      .filter((entry) => entry.isFile() && (!match || match.test(entry.name)))
      .map((entry) => join(entry.parentPath ?? entry.path, entry.name))
      .sort();
    if (files.length > 0) return files;
  } catch (cause) {
    throw unreadableFileError(path, cause);
  }
  const contents = match ? `files that match ${match}` : 'text files';
  throw dataError(path, `a folder with ${contents}`, 'a folder without them', 'Check the path.');
}

function readText(file: string): string {
  let bytes: Uint8Array;
  try {
    bytes = readFileSync(file);
  } catch (cause) {
    throw unreadableFileError(file, cause);
  }
  const hint = `Leave ${basename(file)} out with \`match\`, or convert it to UTF-8.`;
  return decodeUtf8(bytes, file, hint);
}

function decodeUtf8(bytes: Uint8Array, location: string, hint: string): string {
  try {
    return new TextDecoder('utf-8', { fatal: true }).decode(bytes);
  } catch {
    throw dataError(location, 'UTF-8 text', 'other bytes', hint);
  }
}

const CHUNK_BYTES = 1 << 20;

/** Yields the lines of a file, without line ends. Reads the file in chunks, so it may be large. */
function* readLines(path: string): Generator<Uint8Array> {
  let file: number;
  try {
    file = openSync(path, 'r');
  } catch (cause) {
    throw unreadableFileError(path, cause);
  }
  try {
    let pending = Buffer.alloc(0);
    while (true) {
      const chunk = Buffer.allocUnsafe(CHUNK_BYTES);
      const count = readChunk(file, chunk, path);
      if (count === 0) break;
      pending = Buffer.concat([pending, chunk.subarray(0, count)]);
      let start = 0;
      for (let end = pending.indexOf(10); end >= 0; end = pending.indexOf(10, start)) {
        yield pending.subarray(start, end);
        start = end + 1;
      }
      pending = pending.subarray(start);
    }
    if (pending.length > 0) yield pending;
  } finally {
    closeSync(file);
  }
}

function readChunk(file: number, chunk: Uint8Array, path: string): number {
  try {
    return readSync(file, chunk);
  } catch (cause) {
    throw unreadableFileError(path, cause);
  }
}
