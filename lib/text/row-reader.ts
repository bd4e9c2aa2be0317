// The rows of a part of a file, each with the place that errors name.
import { closeSync, openSync, readFileSync, readSync } from 'node:fs';

import { parquetRows } from './parquet-rows.js';
import type { FilePart } from './row-files.js';
import { dataError } from './tokenizer-folder.js';

/** A row as it was written. */
export type Row = Record<string, unknown>;

/** What is read from one row; `place` is worked out when somebody asks. */
export interface PlacedRow {
  row: Row;
  place(): string;
}

/** In order. Throws DS_DATA, naming file and line, for what is no row. */
export async function* rowsOf(part: FilePart): AsyncGenerator<PlacedRow> {
  const { path, format, start, end } = part;
  if (format === 'text') {
    yield { row: { text: utf8(readWhole(path), () => path) }, place: () => path };
  } else if (format === 'json') {
    yield* rowsOfArray(path);
  } else if (format === 'jsonl') {
    for (const { bytes, at } of linesFrom(path, start, end)) {
      const place = (): string => `${path}:${lineAt(path, at)}`;
      const text = utf8(bytes, place);
      if (text.trim() !== '') yield { row: parseRow(text, place), place };
    }
  } else {
    const rows = await parquetRows(path, start, end);
    for (const [i, row] of rows.entries()) {
      yield { row: row as Row, place: () => `${path}, row ${start + i}` };
    }
  }
}

function* rowsOfArray(path: string): Generator<PlacedRow> {
  const text = utf8(readWhole(path), () => path);
  let rows: unknown;
  try {
    rows = JSON.parse(text);
  } catch (cause) {
    const hint = 'A file with an object on each line ends in .jsonl.';
    throw dataError(path, 'a JSON array of rows', (cause as Error).message, hint);
  }
  if (!Array.isArray(rows)) throw dataError(path, 'a JSON array of rows', text.slice(0, 60), '');
  for (const [i, row] of rows.entries()) {
    const place = (): string => `${path}, row ${i}`;
    yield { row: requireObject(row, place), place };
  }
}

function parseRow(text: string, place: () => string): Row {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (cause) {
    throw dataError(place(), 'a JSON object', (cause as Error).message, '');
  }
  return requireObject(value, place);
}

function requireObject(value: unknown, place: () => string): Row {
  if (typeof value === 'object' && value !== null && !Array.isArray(value)) return value as Row;
  throw dataError(place(), 'a JSON object', JSON.stringify(value).slice(0, 60), '');
}

function readWhole(path: string): Uint8Array {
  try {
    return readFileSync(path);
  } catch (cause) {
    throw dataError(path, 'a readable file', (cause as Error).message, '');
  }
}

function utf8(bytes: Uint8Array, place: () => string): string {
  try {
    return new TextDecoder('utf-8', { fatal: true }).decode(bytes);
  } catch {
    throw dataError(place(), 'UTF-8 text', 'other bytes', 'Convert it to UTF-8.');
  }
}

const CHUNK_BYTES = 1 << 20;
const NEWLINE = 10;

/** The lines that begin in [start, end), without their ends, and where they begin. */
function* linesFrom(
  path: string,
  start: number,
  end: number,
): Generator<{ bytes: Uint8Array; at: number }> {
  const file = opened(path);
  try {
    // A line begins at `start` when the byte before ends one.
    let at = Math.max(0, start - 1);
    let rest = Buffer.alloc(0);
    let isSkipping = start > 0;
    while (at < end) {
      const cut = rest.indexOf(NEWLINE);
      if (cut < 0) {
        const more = Buffer.allocUnsafe(CHUNK_BYTES);
        const count = readSync(file, more, 0, CHUNK_BYTES, at + rest.length);
        if (count > 0) {
          rest = Buffer.concat([rest, more.subarray(0, count)]);
          continue;
        }
      }
      const length = cut < 0 ? rest.length : cut;
      if (!isSkipping && length > 0) yield { bytes: rest.subarray(0, length), at };
      isSkipping = false;
      if (cut < 0) return;
      rest = rest.subarray(length + 1);
      at += length + 1;
    }
  } finally {
    closeSync(file);
  }
}

function opened(path: string): number {
  try {
    return openSync(path, 'r');
  } catch (cause) {
    throw dataError(path, 'a readable file', (cause as Error).message, '');
  }
}

/** The number of the line that begins at a byte; only errors need it. */
function lineAt(path: string, at: number): number {
  const bytes = readFileSync(path).subarray(0, at);
  let line = 1;
  for (const byte of bytes) if (byte === NEWLINE) line++;
  return line;
}
