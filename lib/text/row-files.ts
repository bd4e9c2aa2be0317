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
import type { Columns } from './columns.js';
import { divideCsv } from './csv-rows.js';
import { readGroupStarts } from './parquet-rows.js';

/** Format of a file. */
type RowFormat = 'jsonl' | 'json' | 'parquet' | 'csv' | 'text';

/**
 * A part of a file. For jsonl and csv, the rows that start in a byte range; for parquet, a range of
 * rows; else the whole file.
 */
export interface FilePart {
  path: string;
  format: RowFormat;
  start: number;
  end: number;
  /** SHA-256 of the file; empty without a cache. */
  digest: string;
  /** Columns that the reader renames. Default: none. */
  columns?: Columns;
}

const FORMATS: Readonly<Record<string, RowFormat>> = {
  '.jsonl': 'jsonl',
  '.ndjson': 'jsonl',
  '.json': 'json',
  '.parquet': 'parquet',
  '.csv': 'csv',
  '.tsv': 'csv',
  '.txt': 'text',
  '.md': 'text',
};

/**
 * Bytes of a part of jsonl or csv: large compared to a message between threads, small compared to a
 * file.
 */
const PART_BYTES = 4 << 20;

/**
 * Returns the files of paths and patterns (with *, ?, ** and {a,b}). Each file occurs once; the
 * files of a pattern are sorted by path. An existing path is not a pattern. Throws DS_DATA for a
 * pattern without files and for an unknown format, and DS_ARGUMENT.
 */
export function findFiles(op: string, given: unknown): string[] {
  const patterns = Array.isArray(given) ? given : [given];
  if (patterns.length === 0 || patterns.some((pattern) => typeof pattern !== 'string')) {
    const expected = 'a path, a pattern such as "data/*.jsonl", or a list of these';
    throw valueError(op, expected, given);
  }
  const files = new Set((patterns as string[]).flatMap(expandPattern));
  for (const path of files) requireFormat(path);
  return [...files];
}

function expandPattern(pattern: string): string[] {
  const isPattern = /[*?{]/.test(pattern) && !existsSync(pattern);
  const files = isPattern ? matchPattern(pattern) : expandFolder(pattern);
  if (files.length > 0) return files.sort();
  const hint = `Known are ${Object.keys(FORMATS).join(', ')}; patterns are relative to ${workingDirectory()}.`;
  throw dataError(pattern, 'at least one file', 'none', hint);
}

/** Returns a file, or all files of known formats in a folder. */
function expandFolder(path: string): string[] {
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

function matchPattern(pattern: string): string[] {
  const normal = pattern.split(sep).join('/');
  const fixed = normal.slice(0, normal.search(/[*?{]/));
  const folder = dirname(`${fixed}x`);
  const isDeep = /\/|\*\*/.test(normal.slice(fixed.length));
  const glob = patternSource(isAbsolute(normal) ? normal : join('.', normal));
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

/** Converts a pattern to a regular expression: ** matches across folders, * and ? do not. */
function patternSource(pattern: string): string {
  return pattern.replace(/\*\*\/|\*\*|\*|\?|\{[^}]*\}|[.+^$()|[\]\\]/g, (found) => {
    if (found === '**/') return '(?:.*/)?';
    if (found === '**') return '.*';
    if (found === '*') return '[^/]*';
    if (found === '?') return '[^/]';
    if (found.startsWith('{'))
      return `(?:${found.slice(1, -1).split(',').map(patternSource).join('|')})`;
    return `\\${found}`;
  });
}

function requireFormat(path: string): RowFormat {
  const format = FORMATS[extname(path).toLowerCase()];
  if (format) return format;
  const expected = `a file that ends in ${Object.keys(FORMATS).join(', ')}`;
  throw dataError(
    path,
    expected,
    basename(path),
    'Save tables as CSV, and convert other files to JSON lines: docs/text.md#files.',
  );
}

/** Bytes that are read to find a file's first character after whitespace. */
const BEGINNING = 4096;

/**
 * Returns the format by name; for .json, by the first character: an array, or an object on each
 * line.
 */
function detectFormat(path: string): RowFormat {
  const format = requireFormat(path);
  if (format !== 'json') return format;
  return /^\uFEFF?\s*\{/.test(readBeginning(path)) ? 'jsonl' : 'json';
}

function readBeginning(path: string): string {
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

/**
 * Divides files into parts, in order. The reader of a part renames `columns`. Throws DS_DATA if a
 * file cannot be read.
 */
export async function divideFiles(
  paths: readonly string[],
  withDigest: boolean,
  columns?: Columns,
): Promise<FilePart[]> {
  const parts: FilePart[] = [];
  for (const path of paths) {
    const size = fileSize(path);
    const format = detectFormat(path);
    const digest = withDigest ? await digestFile(path) : '';
    const borders = await partBorders(path, format, size);
    for (let i = 1; i < borders.length; ++i) {
      const [start, end] = [required(borders[i - 1]), required(borders[i])];
      // An absolute path, because the working directory may change before the file is read.
      const part = { path: absolutePath(path), format, start, end, digest };
      parts.push(columns ? { ...part, columns } : part);
    }
  }
  return parts;
}

/** Returns the bytes of a regular file. Throws for a pipe, which would block. */
function fileSize(path: string): number {
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

async function partBorders(path: string, format: RowFormat, size: number): Promise<number[]> {
  if (format === 'parquet') return readGroupStarts(path);
  if (format === 'csv') return divideCsv(path, size, PART_BYTES);
  if (format !== 'jsonl') return [0, Math.max(size, 1)];
  const count = Math.max(1, Math.ceil(size / PART_BYTES));
  return Array.from({ length: count + 1 }, (_, i) => Math.floor((i * size) / count));
}

async function digestFile(path: string): Promise<string> {
  const hash = createHash('sha256');
  try {
    for await (const chunk of createReadStream(path, { highWaterMark: 1 << 20 }))
      hash.update(chunk);
  } catch (cause) {
    throw dataError(path, 'a readable file', errorMessage(cause));
  }
  return hash.digest('hex');
}
