// Selects the files of a dataset, and divides them into parts for threads.

import { createHash } from 'node:crypto';
import {
  closeSync,
  createReadStream,
  existsSync,
  openSync,
  readdirSync,
  readSync,
  statSync,
} from 'node:fs';
import { basename, dirname, extname, isAbsolute, join, sep } from 'node:path';
import { dataError, valueError } from '../runtime/input-errors.js';
import { Regex } from '../runtime/regex/regex.js';
import { required } from '../runtime/required.js';
import {
  absolutePath,
  errorCode,
  errorMessage,
  workingDirectory,
} from '../runtime/system-error.js';
import { parquetGroups } from './parquet-rows.js';

/** How a file holds rows. */
type RowFormat = 'jsonl' | 'json' | 'parquet' | 'text';

/**
 * A part of a file: for jsonl the lines that begin in a byte range, for parquet a range of rows,
 * else the whole file.
 */
export interface FilePart {
  path: string;
  format: RowFormat;
  start: number;
  end: number;
  /** SHA-256 of the file; empty without a cache. */
  digest: string;
}

const FORMATS: Readonly<Record<string, RowFormat>> = {
  '.jsonl': 'jsonl',
  '.ndjson': 'jsonl',
  '.json': 'json',
  '.parquet': 'parquet',
  '.txt': 'text',
  '.md': 'text',
};

/** Bytes of a part of jsonl: large against a message between threads, small against a file. */
const PART_BYTES = 4 << 20;

/**
 * Expands paths and patterns (with *, ?, ** and {a,b}). Each file comes once; the files of a
 * pattern are sorted by path. An existing path is not a pattern. Throws DS_DATA for a pattern
 * without files and for an unknown format; DS_ARGUMENT.
 */
export function findFiles(op: string, given: unknown): string[] {
  const patterns = Array.isArray(given) ? given : [given];
  const odd = patterns.find((pattern) => typeof pattern !== 'string');
  if (odd !== undefined || patterns.length === 0) {
    const expected = 'a path, a pattern such as "data/*.jsonl", or a list of these';
    throw valueError(op, expected, odd ?? given);
  }
  const found = new Set((patterns as string[]).flatMap(filesOf));
  for (const path of found) formatOf(path);
  return [...found];
}

function filesOf(pattern: string): string[] {
  const isPattern = /[*?{]/.test(pattern) && !existsSync(pattern);
  const files = isPattern ? matches(pattern) : wholeFolder(pattern);
  if (files.length > 0) return files.sort();
  const hint = `Known are ${Object.keys(FORMATS).join(', ')}; patterns are relative to ${workingDirectory()}.`;
  throw dataError(pattern, 'at least one file', 'none', hint);
}

/** A file, or all files of known formats in a folder. */
function wholeFolder(path: string): string[] {
  let isFolder: boolean;
  try {
    isFolder = statSync(path).isDirectory();
  } catch (cause) {
    throw dataError(path, 'a file or folder', errorMessage(cause), 'Check the path.');
  }
  return isFolder
    ? listFolder(path).filter((file) => extname(file).toLowerCase() in FORMATS)
    : [path];
}

function matches(pattern: string): string[] {
  const normal = pattern.split(sep).join('/');
  const fixed = normal.slice(0, normal.search(/[*?{]/));
  const folder = dirname(`${fixed}x`);
  const isDeep = /\/|\*\*/.test(normal.slice(fixed.length));
  const glob = translate(isAbsolute(normal) ? normal : join('.', normal));
  const expression = new Regex(glob, { isWhole: true });
  try {
    return listFolder(folder, isDeep).filter((file) =>
      expression.matchesStart(file.split(sep).join('/')),
    );
  } catch (cause) {
    if (errorCode(cause) === 'ENOENT') return [];
    throw dataError(folder, 'a folder that can be read', errorMessage(cause));
  }
}

function listFolder(folder: string, recursive = true): string[] {
  const entries = readdirSync(folder, { recursive, withFileTypes: true });
  const files = entries.filter((entry) => !entry.isDirectory());
  return files.map((entry) => join(entry.parentPath ?? entry.path, entry.name));
}

/** A pattern as a regular expression: ** crosses folders, * and ? do not. */
function translate(pattern: string): string {
  return pattern.replace(/\*\*\/|\*\*|\*|\?|\{[^}]*\}|[.+^$()|[\]\\]/g, (found) => {
    if (found === '**/') return '(?:.*/)?';
    if (found === '**') return '.*';
    if (found === '*') return '[^/]*';
    if (found === '?') return '[^/]';
    if (found.startsWith('{'))
      return `(?:${found.slice(1, -1).split(',').map(translate).join('|')})`;
    return `\\${found}`;
  });
}

function formatOf(path: string): RowFormat {
  const format = FORMATS[extname(path).toLowerCase()];
  if (format) return format;
  const expected = `a file that ends in ${Object.keys(FORMATS).join(', ')}`;
  throw dataError(
    path,
    expected,
    basename(path),
    'Compressed and other files have to be converted.',
  );
}

/** Bytes read to find a file's first character behind blanks. */
const BEGINNING = 4096;

/** By the name, and of .json by how it begins: with an array, or with an object on each line. */
function formatIn(path: string): RowFormat {
  const format = formatOf(path);
  if (format !== 'json') return format;
  return /^\uFEFF?\s*\{/.test(beginning(path)) ? 'jsonl' : 'json';
}

function beginning(path: string): string {
  let file: number | null = null;
  try {
    file = openSync(path, 'r');
    const bytes = Buffer.alloc(BEGINNING);
    return bytes.toString('utf8', 0, readSync(file, bytes));
  } catch (cause) {
    throw dataError(path, 'a readable file', errorMessage(cause));
  } finally {
    if (file !== null) closeSync(file);
  }
}

/** The parts of files, in order. Throws DS_DATA if a file cannot be read. */
export async function partsOf(paths: readonly string[], withDigest: boolean): Promise<FilePart[]> {
  const parts: FilePart[] = [];
  for (const path of paths) {
    const size = sizeOf(path);
    const format = formatIn(path);
    const digest = withDigest ? await digestOf(path) : '';
    const borders = await bordersOf(path, format, size);
    for (let i = 1; i < borders.length; ++i) {
      const [start, end] = [required(borders[i - 1]), required(borders[i])];
      // Absolute: they are read later, in another working directory perhaps.
      parts.push({ path: absolutePath(path), format, start, end, digest });
    }
  }
  return parts;
}

/** Bytes of a regular file: a pipe would hang. */
function sizeOf(path: string): number {
  let got: string;
  try {
    const status = statSync(path);
    if (status.isFile()) return status.size;
    got = status.isDirectory() ? 'a folder' : 'a pipe or device';
  } catch (cause) {
    got = errorMessage(cause);
  }
  throw dataError(path, 'a readable file', got);
}

async function bordersOf(path: string, format: RowFormat, size: number): Promise<number[]> {
  if (format === 'parquet') return parquetGroups(path);
  if (format !== 'jsonl') return [0, Math.max(size, 1)];
  const count = Math.max(1, Math.ceil(size / PART_BYTES));
  return Array.from({ length: count + 1 }, (_, i) => Math.floor((i * size) / count));
}

async function digestOf(path: string): Promise<string> {
  const hash = createHash('sha256');
  try {
    for await (const chunk of createReadStream(path, { highWaterMark: 1 << 20 }))
      hash.update(chunk);
  } catch (cause) {
    throw dataError(path, 'a readable file', errorMessage(cause));
  }
  return hash.digest('hex');
}
