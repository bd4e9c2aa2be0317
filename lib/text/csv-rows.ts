// Reads rows of CSV and TSV files: RFC 4180, with the delimiter of the header line.
import { closeSync } from 'node:fs';
import { extname } from 'node:path';
import { dataError } from '../runtime/input-errors.js';
import { openFile, readChunks } from './read-chunks.js';

const [NEWLINE, QUOTE] = [10, 34];
const DELIMITERS = [',', ';', '\t', '|'] as const;
/** Maximum bytes of a record; only an open quote makes a longer one. */
const MAX_BYTES = 64 << 20;

/** A line, or several lines with line ends in quotes. */
interface CsvRecord {
  bytes: Uint8Array;
  /** Position of the first byte in the file. */
  at: number;
}

/** The columns of a file. */
interface CsvHeader {
  names: readonly string[];
  delimiter: string;
  /** Position of the first row. */
  end: number;
}

/** Decodes the record at a position. Throws DS_DATA for bytes that are not valid text. */
export type DecodeRecord = (record: CsvRecord) => string;

/** A row of texts, and its position. */
interface CsvRow {
  row: Record<string, string>;
  at: number;
}

/** State within a record: at the start of a value, in it, in quotes, or after a quote in quotes. */
type ParserState = 'start' | 'value' | 'quotes' | 'quote';

function nextState(state: ParserState, isQuote: boolean, isDelimiter: boolean): ParserState {
  if (state === 'quotes') return isQuote ? 'quote' : 'quotes';
  if (isDelimiter) return 'start';
  // Two quotes in quotes are one quote; a quote inside a value without quotes is text.
  return isQuote && state !== 'value' ? 'quotes' : 'value';
}

/** Yields the records from `from` on, without line feeds. Throws DS_DATA for an open quote. */
function* readRecords(path: string, from: number, delimiter: string): Generator<CsvRecord> {
  const file = openFile(path);
  const separator = delimiter.charCodeAt(0);
  let [at, offset] = [from, from];
  let state: ParserState = 'start';
  let pieces: Uint8Array[] = [];
  try {
    for (const chunk of readChunks(file, from)) {
      let cut = 0;
      for (let i = 0; i < chunk.length; ++i) {
        if (state === 'quotes') {
          const quote = chunk.indexOf(QUOTE, i);
          if (quote < 0) break;
          i = quote;
        }
        const byte = chunk[i];
        if (byte === NEWLINE) {
          yield { bytes: Buffer.concat([...pieces, chunk.subarray(cut, i)]), at };
          [pieces, state, cut, at] = [[], 'start', i + 1, offset + i + 1];
        } else if (state !== 'value' || byte === separator) {
          state = nextState(state, byte === QUOTE, byte === separator);
        }
      }
      pieces.push(chunk.subarray(cut));
      offset += chunk.length;
      if (offset - at > MAX_BYTES) throw openQuoteError(path, at);
    }
  } finally {
    closeSync(file);
  }
  if (state === 'quotes') throw openQuoteError(path, at);
  if (offset > at) yield { bytes: Buffer.concat(pieces), at };
}

function openQuoteError(path: string, at: number): Error {
  const hint = 'Write a quote inside a quoted value twice: "".';
  const got = `the end of the file, for the row at byte ${at}`;
  return dataError(path, 'a quote that ends the quoted value', got, hint);
}

const isBlank = ({ bytes }: CsvRecord): boolean =>
  bytes.length === 0 || (bytes.length === 1 && bytes[0] === 13);

/** Splits a record into its values. */
function splitValues(line: string, delimiter: string): string[] {
  const record = line.endsWith('\r') ? line.slice(0, -1) : line;
  if (!record.includes('"')) return record.split(delimiter);
  const endOf = (from: number): number => {
    const end = record.indexOf(delimiter, from);
    return end < 0 ? record.length : end;
  };
  const values: string[] = [];
  for (let at = 0; ; at += 1) {
    let value = '';
    if (record[at] === '"') [value, at] = readQuoted(record, at + 1);
    const end = endOf(at);
    values.push(value + record.slice(at, end));
    at = end;
    if (at >= record.length) return values;
  }
}

/** Returns the text of quotes that begin before `at`, and the position after them. */
function readQuoted(record: string, at: number): [text: string, end: number] {
  let text = '';
  for (let from = at; ; ) {
    const quote = record.indexOf('"', from);
    if (quote < 0) return [text + record.slice(from), record.length];
    text += record.slice(from, quote);
    if (record[quote + 1] !== '"') return [text, quote + 1];
    text += '"';
    from = quote + 2;
  }
}

/** Returns the columns and the delimiter that gives most columns. Null for an empty file. */
function readHeader(path: string, decode: DecodeRecord): CsvHeader | null {
  const isTabs = extname(path).toLowerCase() === '.tsv';
  let best: CsvHeader | null = null;
  for (const delimiter of isTabs ? ['\t'] : DELIMITERS) {
    for (const record of readRecords(path, 0, delimiter)) {
      if (isBlank(record)) continue;
      const names = splitValues(decode(record).replace(/^\uFEFF/, ''), delimiter);
      const end = record.at + record.bytes.length + 1;
      if (names.length > (best?.names.length ?? 0)) best = { names, delimiter, end };
      break;
    }
  }
  const twice = best?.names.find((name, i) => name !== '' && best?.names.indexOf(name) !== i);
  if (twice === undefined) return best;
  const hint = 'The first line names the columns.';
  throw dataError(path, 'columns with different names', `"${twice}" twice`, hint);
}

/**
 * Yields the rows that start in [start, end). All values are texts. A column without a name is left
 * out, as pandas writes one for its index. Throws DS_DATA if a row lacks values or has too many.
 */
export function* readCsvRows(
  path: string,
  [start, end]: readonly [number, number],
  { decode, locate }: { decode: DecodeRecord; locate(at: number): string },
): Generator<CsvRow> {
  const header = readHeader(path, decode);
  if (header === null) return;
  const { names, delimiter } = header;
  for (const record of readRecords(path, Math.max(start, header.end), delimiter)) {
    if (record.at >= end) return;
    if (isBlank(record)) continue;
    const values = splitValues(decode(record), delimiter);
    if (values.length !== names.length) {
      const expected = `${names.length} values, for ${names.join(', ')}`;
      const hint = 'Put a value that contains the delimiter into quotes.';
      throw dataError(locate(record.at), expected, String(values.length), hint);
    }
    const entries = names.map((name, i): [string, string] => [name, values[i] as string]);
    yield { row: Object.fromEntries(entries.filter(([name]) => name !== '')), at: record.at };
  }
}

/** Returns the positions of rows that divide a file into parts of about `bytes` bytes. */
export function divideCsv(path: string, size: number, bytes: number): number[] {
  if (size <= bytes) return [0, Math.max(size, 1)];
  const delimiter = readHeader(path, ({ bytes: some }) => Buffer.from(some).toString())?.delimiter;
  const borders = [0];
  let last = 0;
  for (const { at } of readRecords(path, 0, delimiter ?? ',')) {
    if (at - last < bytes) continue;
    borders.push(at);
    last = at;
  }
  return [...borders, size];
}
