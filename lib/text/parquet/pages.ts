// Reads the values of a column chunk page by page, and checks each page against its header.
import type { ColumnDecoder, DecodedArray, ParquetParsers } from 'hyparquet/src/types.js';
import { required } from '../../runtime/required.js';
import { errorMessage } from '../../runtime/system-error.js';
import { decompress } from './codecs.js';
import type { ColumnChunk } from './footer.js';
import { readCount, readOptionalCount, readStruct, type Struct, ThriftReader } from './thrift.js';
import { bitWidth, PageBytes, readPlain, readRuns, readValues, type Values } from './values.js';

/** All levels and values of a chunk. */
interface ColumnValues {
  definitions: number[];
  repetitions: number[];
  values: unknown[];
}

/** Converts decoded values to strings, dates and other types. */
type ConvertValues = (values: DecodedArray, decoder: ColumnDecoder) => DecodedArray;

/** Converters of values. `spend` subtracts bytes from the budget of the row group. */
interface PageContext {
  convert: ConvertValues;
  parsers: ParquetParsers;
  spend(bytes: number): void;
}

const PAGE = { data: 0, index: 1, dictionary: 2, dataV2: 3 };
const ENCODINGS = [
  'PLAIN',
  'GROUP_VAR_INT',
  'PLAIN_DICTIONARY',
  'RLE',
  'BIT_PACKED',
  'DELTA_BINARY_PACKED',
  'DELTA_LENGTH_BYTE_ARRAY',
  'DELTA_BYTE_ARRAY',
  'RLE_DICTIONARY',
  'BYTE_STREAM_SPLIT',
];

/**
 * Reads all values of a chunk. Throws an Error with the column and the byte of the first damaged
 * page.
 */
export function readColumn(
  bytes: Uint8Array,
  chunk: ColumnChunk,
  rows: number,
  context: PageContext,
): ColumnValues {
  const reader = new ChunkReader(bytes, chunk, context);
  while (reader.count < chunk.values) reader.readNextPage();
  const { columnValues } = reader;
  if (chunk.leaf.repetitions > 0) {
    const rowCount = columnValues.repetitions.reduce(
      (sum, level) => sum + (level === 0 ? 1 : 0),
      0,
    );
    if (rowCount !== rows) throw reader.damaged(`${rowCount} rows, not ${rows}`);
  }
  return columnValues;
}

class ChunkReader {
  readonly columnValues: ColumnValues = { definitions: [], repetitions: [], values: [] };
  /** Number of values and nulls read so far. */
  count = 0;
  private at = 0;
  private pageAt = 0;
  private dictionary: Values | null = null;
  private readonly view: DataView;

  constructor(
    private readonly bytes: Uint8Array,
    private readonly chunk: ColumnChunk,
    private readonly context: PageContext,
  ) {
    this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  }

  damaged(got: string): Error {
    return new Error(
      `column ${this.chunk.leaf.name}, byte ${this.chunk.start + this.pageAt}: ${got}`,
    );
  }

  /** Reads the next page. */
  readNextPage(): void {
    this.pageAt = this.at;
    try {
      this.readPage();
    } catch (cause) {
      throw this.damaged(errorMessage(cause));
    }
  }

  private readPage(): void {
    const thrift = new ThriftReader(this.view, this.at);
    const header = thrift.struct();
    const size = readCount(header, 3, 'bytes of the page');
    const uncompressedBytes = readCount(header, 2, 'uncompressed bytes of the page');
    const end = thrift.at + size;
    if (end > this.bytes.length) {
      throw new Error(`a page of ${size} bytes where ${this.bytes.length - thrift.at} remain`);
    }
    const stored = this.bytes.subarray(thrift.at, end);
    this.at = end;
    const sum = header.get(4);
    if (sum !== undefined && sum !== (crc32(stored) | 0)) throw new Error('a wrong checksum');
    this.context.spend(uncompressedBytes);
    const type = header.get(1);
    if (type === PAGE.data)
      this.readDataPage(readStruct(header, 5, 'header'), stored, uncompressedBytes);
    else if (type === PAGE.dataV2)
      this.readDataPageV2(readStruct(header, 8, 'header'), stored, uncompressedBytes);
    else if (type === PAGE.dictionary) {
      this.readDictionaryPage(readStruct(header, 7, 'header'), stored, uncompressedBytes);
    } else if (type !== PAGE.index) throw new Error(`unknown page type ${String(type)}`);
  }

  private decompressPage(stored: Uint8Array, size: number): PageBytes {
    return new PageBytes(decompress(this.chunk.codec, stored, size));
  }

  private readDictionaryPage(header: Struct, stored: Uint8Array, whole: number): void {
    if (this.dictionary || this.count > 0) throw new Error('a second dictionary');
    const encoding = readEncoding(header, 2);
    if (encoding !== 'PLAIN' && encoding !== 'PLAIN_DICTIONARY') {
      throw new Error(`a dictionary in the encoding ${encoding}`);
    }
    const count = readCount(header, 1, 'values of the dictionary');
    const page = this.decompressPage(stored, whole);
    this.dictionary = this.convertValues(readPlain(page, count, this.chunk.leaf.element));
  }

  private readDataPage(header: Struct, stored: Uint8Array, whole: number): void {
    const { leaf } = this.chunk;
    const count = this.countValues(header);
    const page = this.decompressPage(stored, whole);
    const levels = (largest: number, id: number): Uint32Array | null => {
      if (largest === 0) return null;
      const encoding = readEncoding(header, id);
      if (encoding !== 'RLE') throw new Error(`levels in the encoding ${encoding}`);
      const head = page.take(4);
      const length = new DataView(head.buffer, head.byteOffset).getUint32(0, true);
      return readRuns(page.take(length), bitWidth(largest), count, largest);
    };
    const repetitions = levels(leaf.repetitions, 4);
    const definitions = levels(leaf.definitions, 3);
    this.appendPage(count, definitions, repetitions, page, readEncoding(header, 2));
  }

  private readDataPageV2(header: Struct, stored: Uint8Array, whole: number): void {
    const { leaf } = this.chunk;
    const count = this.countValues(header);
    const levels = new PageBytes(stored);
    const take = (largest: number, id: number, name: string): Uint32Array | null => {
      const bytes = levels.take(readCount(header, id, name));
      return largest === 0 ? null : readRuns(bytes, bitWidth(largest), count, largest);
    };
    const repetitions = take(leaf.repetitions, 6, 'bytes of repetition levels');
    const definitions = take(leaf.definitions, 5, 'bytes of definition levels');
    const rest = stored.subarray(levels.at);
    const size = whole - levels.at;
    const page = header.get(7) === false ? new PageBytes(rest) : this.decompressPage(rest, size);
    if (page.bytes.length !== size) throw new Error(`${page.bytes.length} bytes, not ${size}`);
    const present = this.appendPage(count, definitions, repetitions, page, readEncoding(header, 4));
    const nulls = readCount(header, 2, 'nulls');
    if (present + nulls !== count) throw new Error(`${nulls} nulls, not ${count - present}`);
    const rows = readCount(header, 3, 'rows');
    const rowCount = repetitions ? repetitions.filter((level) => level === 0).length : count;
    if (rows !== rowCount) throw new Error(`${rows} rows, not ${rowCount}`);
  }

  /** Returns the number of values in a data page. */
  private countValues(header: Struct): number {
    const count = readCount(header, 1, 'values of the page');
    if (count > this.chunk.values - this.count) {
      throw new Error(`at least ${this.count + count} values, not ${this.chunk.values}`);
    }
    return count;
  }

  /** Appends a page. Returns the number of values that are not null. */
  private appendPage(
    count: number,
    definitions: Uint32Array | null,
    repetitions: Uint32Array | null,
    page: PageBytes,
    encoding: string,
  ): number {
    const { leaf } = this.chunk;
    const { columnValues } = this;
    if (this.count === 0 && count > 0 && (repetitions?.[0] ?? 0) !== 0) {
      throw new Error('a first value that continues a row');
    }
    let present = count;
    if (definitions) {
      present = definitions.reduce((sum, level) => sum + (level === leaf.definitions ? 1 : 0), 0);
      for (const level of definitions) columnValues.definitions.push(level);
    }
    if (repetitions) for (const level of repetitions) columnValues.repetitions.push(level);
    const { element } = leaf;
    const { spend } = this.context;
    const source = { encoding, element, dictionary: this.dictionary, spend };
    const { values, isConverted } = readValues(page, present, source);
    const final = isConverted ? values : this.convertValues(values);
    for (let i = 0; i < present; ++i) columnValues.values.push(final[i]);
    this.count += count;
    return present;
  }

  private convertValues(values: Values): Values {
    const { leaf, codec } = this.chunk;
    const { element, path } = leaf;
    if (element.converted_type === 'DECIMAL') requireDecimals(values);
    return this.context.convert(
      values as DecodedArray,
      {
        pathInSchema: path.slice(1).map((node) => node.element.name),
        schemaPath: path,
        type: element.type,
        element,
        codec,
        parsers: this.context.parsers,
      } as ColumnDecoder,
    );
  }
}

/** Maximum bytes of a decimal: conversion time grows with the square of its digits. */
const DECIMAL_BYTES = 32;

function requireDecimals(values: Values): void {
  for (let i = 0; i < values.length; ++i) {
    const value = values[i];
    if (value instanceof Uint8Array && value.length > DECIMAL_BYTES) {
      throw new Error(`a decimal of ${value.length} bytes, more than ${DECIMAL_BYTES}`);
    }
  }
}

function readEncoding(header: Struct, id: number): string {
  const number = readOptionalCount(header, id, 'encoding');
  return number === null ? 'RLE' : (ENCODINGS[number] ?? String(number));
}

// Parquet's checksum is the CRC-32 of gzip, which Node 20 does not export.

const TABLE = Uint32Array.from({ length: 256 }, (_, byte) => {
  let value = byte;
  for (let i = 0; i < 8; ++i) value = value & 1 ? (value >>> 1) ^ 0xedb88320 : value >>> 1;
  return value;
});

function crc32(bytes: Uint8Array): number {
  let crc = ~0;
  for (const byte of bytes) crc = required(TABLE[(crc ^ byte) & 255]) ^ (crc >>> 8);
  return ~crc >>> 0;
}
