// Reads the rows of a part of a file, with their locations for errors.

import { constants } from 'node:buffer';
import { closeSync, readFileSync } from 'node:fs';
import { dataError } from '../runtime/input-errors.js';
import { isObject } from '../runtime/is-object.js';
import { required } from '../runtime/required.js';
import { errorCode, errorMessage } from '../runtime/system-error.js';
import { renameColumns } from './columns.js';
import { type DecodeRecord, readCsvRows } from './csv-rows.js';
import { readParquetRows } from './parquet-rows.js';
import { openFile, readChunks } from './read-chunks.js';
import type { FilePart } from './row-files.js';

/** A row of a file, unchanged. */
export type Row = Record<string, unknown>;

/** A row and its location, which is computed only for errors. */
export interface LocatedRow {
  row: Row;
  location(): string;
  /** Whether the format has no numbers: numbers and flags are texts, as in CSV. */
  isText?: boolean;
}

/**
 * Yields rows in order, with renamed columns. Throws DS_DATA with file and line if a row is damaged
 * or lacks a renamed column.
 */
export async function* readRows(part: FilePart): AsyncGenerator<LocatedRow> {
  for await (const located of readFileRows(part)) yield renameColumns(located, part.columns);
}

async function* readFileRows(part: FilePart): AsyncGenerator<LocatedRow> {
  const { path, format, start, end } = part;
  if (format === 'text') {
    yield { row: { text: decodeUtf8(readWhole(path), () => path) }, location: () => path };
  } else if (format === 'json') {
    yield* readArrayRows(path);
  } else if (format === 'jsonl') {
    for (const { bytes, at } of readLines(path, start, end)) {
      const location = (): string => `${path}:${countLines(path, at)}`;
      const text = decodeUtf8(bytes, location);
      if (text.trim() !== '') yield { row: parseRow(text, location), location };
    }
  } else if (format === 'csv') {
    const locate = (at: number): string => `${path}:${countLines(path, at)}`;
    const decode: DecodeRecord = ({ bytes, at }) => decodeUtf8(bytes, () => locate(at));
    for (const { row, at } of readCsvRows(path, [start, end], { decode, locate })) {
      yield { row, location: () => locate(at), isText: true };
    }
  } else {
    const rows = await readParquetRows(path, start, end);
    for (const [i, row] of rows.entries()) {
      yield { row: row as Row, location: () => `${path}, row ${start + i}` };
    }
  }
}

function* readArrayRows(path: string): Generator<LocatedRow> {
  const text = decodeUtf8(readWhole(path), () => path);
  let rows: unknown;
  try {
    rows = JSON.parse(text);
  } catch (cause) {
    throw dataError(path, 'a JSON array of rows', errorMessage(cause));
  }
  if (!Array.isArray(rows)) throw dataError(path, 'a JSON array of rows', text.slice(0, 60));
  for (const [i, row] of rows.entries()) {
    const location = (): string => `${path}, row ${i}`;
    yield { row: requireObject(row, location), location };
  }
}

function parseRow(text: string, location: () => string): Row {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (cause) {
    const hint = 'Rows are objects on a line each, or in one array (.json).';
    throw dataError(location(), 'a JSON object', errorMessage(cause), hint);
  }
  return requireObject(value, location);
}

function requireObject(value: unknown, location: () => string): Row {
  if (isObject<Row>(value)) return value;
  throw dataError(location(), 'a JSON object', JSON.stringify(value).slice(0, 60));
}

function readWhole(path: string): Uint8Array {
  try {
    return readFileSync(path);
  } catch (cause) {
    throw dataError(path, 'a readable file', errorMessage(cause));
  }
}

function decodeUtf8(bytes: Uint8Array, location: () => string): string {
  try {
    return new TextDecoder('utf-8', { fatal: true }).decode(bytes);
  } catch (cause) {
    if (errorCode(cause) !== 'ERR_STRING_TOO_LONG') {
      throw dataError(location(), 'UTF-8 text', 'other bytes', 'Convert it to UTF-8.');
    }
    const expected = `a string of at most ${constants.MAX_STRING_LENGTH} characters`;
    throw dataError(location(), expected, `${bytes.length} bytes`, 'Cut it into several.');
  }
}

const NEWLINE = 10;

/** Yields the lines that start in [start, end), without line ends, and their positions. */
function* readLines(
  path: string,
  start: number,
  end: number,
): Generator<{ bytes: Uint8Array; at: number }> {
  const file = openFile(path);
  try {
    // A line starts at `start` if the byte before it is a newline.
    let at = start > 0 ? findLineStart(file, start - 1, end) : 0;
    let pieces: Uint8Array[] = [];
    for (const chunk of at < end ? readChunks(file, at) : []) {
      let from = 0;
      for (;;) {
        const cut = chunk.indexOf(NEWLINE, from);
        pieces.push(chunk.subarray(from, cut < 0 ? chunk.length : cut));
        if (cut < 0) break;
        const bytes = joinPieces(pieces);
        if (bytes.length > 0) yield { bytes, at };
        at += bytes.length + 1;
        if (at >= end) return;
        from = cut + 1;
        pieces = [];
      }
    }
    const bytes = joinPieces(pieces);
    if (bytes.length > 0) yield { bytes, at };
  } finally {
    closeSync(file);
  }
}

const joinPieces = (pieces: readonly Uint8Array[]): Uint8Array =>
  pieces.length === 1 ? required(pieces[0]) : Buffer.concat(pieces);

/** Returns the start of the line after the first newline at or after `at`, at most `end`. */
function findLineStart(file: number, at: number, end: number): number {
  let seen = at;
  for (const chunk of readChunks(file, at)) {
    const cut = chunk.indexOf(NEWLINE);
    if (cut >= 0) return seen + cut + 1;
    seen += chunk.length;
    if (seen >= end) break;
  }
  return end;
}

/** Returns the number of the line that starts at a byte; used for errors only. */
function countLines(path: string, at: number): number {
  const file = openFile(path);
  try {
    let line = 1;
    let left = at;
    for (const chunk of readChunks(file, 0)) {
      const before = chunk.subarray(0, left);
      for (let i = before.indexOf(NEWLINE); i >= 0; i = before.indexOf(NEWLINE, i + 1)) line++;
      left -= before.length;
      if (left === 0) break;
    }
    return line;
  } finally {
    closeSync(file);
  }
}
