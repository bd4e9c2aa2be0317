// Reads the values of a column chunk, page by page. Checks each page against its header.
import type { ColumnDecoder, DecodedArray, ParquetParsers } from 'hyparquet/src/types.js';
import { required } from '../../runtime/required.js';
import { errorMessage } from '../../runtime/system-error.js';
import { decompress } from './codecs.js';
import type { ColumnChunk } from './footer.js';
import { countIn, optionalCount, type Struct, structIn, ThriftReader } from './thrift.js';
import { bitWidth, PageBytes, readPlain, readRuns, readValues, type Values } from './values.js';

/** All levels and values of a chunk. */
interface ColumnValues {
  definitions: number[];
  repetitions: number[];
  values: unknown[];
}

/** Turns decoded values into strings, dates and so on. */
type Convert = (values: DecodedArray, decoder: ColumnDecoder) => DecodedArray;

/** Converters of values. `spend` takes bytes from the budget of the row group. */
interface PageContext {
  convert: Convert;
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

/** Throws an Error that names the column and the byte of the first damaged page. */
export function readColumn(
  bytes: Uint8Array,
  chunk: ColumnChunk,
  rows: number,
  context: PageContext,
): ColumnValues {
  const reader = new ChunkReader(bytes, chunk, context);
  while (reader.count < chunk.values) reader.page();
  const { found } = reader;
  if (chunk.leaf.repetitions > 0) {
    const rowCount = found.repetitions.reduce((sum, level) => sum + (level === 0 ? 1 : 0), 0);
    if (rowCount !== rows) throw reader.damaged(`${rowCount} rows, not ${rows}`);
  }
  return found;
}

class ChunkReader {
  readonly found: ColumnValues = { definitions: [], repetitions: [], values: [] };
  /** Values and nulls of the pages read so far. */
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
  page(): void {
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
    const size = countIn(header, 3, 'bytes of the page');
    const whole = countIn(header, 2, 'uncompressed bytes of the page');
    const end = thrift.at + size;
    if (end > this.bytes.length) {
      throw new Error(`a page of ${size} bytes for ${whole}, of ${this.bytes.length - thrift.at}`);
    }
    const stored = this.bytes.subarray(thrift.at, end);
    this.at = end;
    const sum = header.get(4);
    if (sum !== undefined && sum !== (crc32(stored) | 0)) throw new Error('a wrong checksum');
    this.context.spend(whole);
    const type = header.get(1);
    if (type === PAGE.data) this.dataPage(structIn(header, 5, 'header'), stored, whole);
    else if (type === PAGE.dataV2) this.dataPageV2(structIn(header, 8, 'header'), stored, whole);
    else if (type === PAGE.dictionary) {
      this.dictionaryPage(structIn(header, 7, 'header'), stored, whole);
    } else if (type !== PAGE.index) throw new Error(`a page of the type ${String(type)}`);
  }

  private unpacked(stored: Uint8Array, size: number): PageBytes {
    return new PageBytes(decompress(this.chunk.codec, stored, size));
  }

  private dictionaryPage(header: Struct, stored: Uint8Array, whole: number): void {
    if (this.dictionary || this.count > 0) throw new Error('a second dictionary');
    const encoding = encodingIn(header, 2);
    if (encoding !== 'PLAIN' && encoding !== 'PLAIN_DICTIONARY') {
      throw new Error(`a dictionary in the encoding ${encoding}`);
    }
    const count = countIn(header, 1, 'values of the dictionary');
    const page = this.unpacked(stored, whole);
    this.dictionary = this.converted(readPlain(page, count, this.chunk.leaf.element));
  }

  private dataPage(header: Struct, stored: Uint8Array, whole: number): void {
    const { leaf } = this.chunk;
    const count = this.begin(header);
    const page = this.unpacked(stored, whole);
    const levels = (largest: number, id: number): Uint32Array | null => {
      if (largest === 0) return null;
      const encoding = encodingIn(header, id);
      if (encoding !== 'RLE') throw new Error(`levels in the encoding ${encoding}`);
      const head = page.take(4);
      const length = new DataView(head.buffer, head.byteOffset).getUint32(0, true);
      return readRuns(page.take(length), bitWidth(largest), count, largest);
    };
    const repetitions = levels(leaf.repetitions, 4);
    const definitions = levels(leaf.definitions, 3);
    this.add(count, definitions, repetitions, page, encodingIn(header, 2));
  }

  private dataPageV2(header: Struct, stored: Uint8Array, whole: number): void {
    const { leaf } = this.chunk;
    const count = this.begin(header);
    const levels = new PageBytes(stored);
    const take = (largest: number, id: number, name: string): Uint32Array | null => {
      const bytes = levels.take(countIn(header, id, name));
      return largest === 0 ? null : readRuns(bytes, bitWidth(largest), count, largest);
    };
    const repetitions = take(leaf.repetitions, 6, 'bytes of repetition levels');
    const definitions = take(leaf.definitions, 5, 'bytes of definition levels');
    const rest = stored.subarray(levels.at);
    const size = whole - levels.at;
    const page = header.get(7) === false ? new PageBytes(rest) : this.unpacked(rest, size);
    if (page.bytes.length !== size) throw new Error(`${page.bytes.length} bytes, not ${size}`);
    const present = this.add(count, definitions, repetitions, page, encodingIn(header, 4));
    const nulls = countIn(header, 2, 'nulls');
    if (present + nulls !== count) throw new Error(`${nulls} nulls in place of ${count - present}`);
    const rows = countIn(header, 3, 'rows');
    const rowCount = repetitions ? repetitions.filter((level) => level === 0).length : count;
    if (rows !== rowCount) throw new Error(`${rows} rows in place of ${rowCount}`);
  }

  /** The number of values in a page of data. */
  private begin(header: Struct): number {
    const count = countIn(header, 1, 'values of the page');
    if (count > this.chunk.values - this.count) {
      throw new Error(`${this.count + count} values and more, of ${this.chunk.values}`);
    }
    return count;
  }

  /** Appends a page. Returns the number of its values that are not null. */
  private add(
    count: number,
    definitions: Uint32Array | null,
    repetitions: Uint32Array | null,
    page: PageBytes,
    encoding: string,
  ): number {
    const { leaf } = this.chunk;
    const { found } = this;
    if (this.count === 0 && count > 0 && (repetitions?.[0] ?? 0) !== 0) {
      throw new Error('values that continue a row before the first one');
    }
    let present = count;
    if (definitions) {
      present = definitions.reduce((sum, level) => sum + (level === leaf.definitions ? 1 : 0), 0);
      for (const level of definitions) found.definitions.push(level);
    }
    if (repetitions) for (const level of repetitions) found.repetitions.push(level);
    const { element } = leaf;
    const { spend } = this.context;
    const source = { encoding, element, dictionary: this.dictionary, spend };
    const { values, isConverted } = readValues(page, present, source);
    const final = isConverted ? values : this.converted(values);
    for (let i = 0; i < present; ++i) found.values.push(final[i]);
    this.count += count;
    return present;
  }

  private converted(values: Values): Values {
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

/** Digits of a decimal number cost time in their square. */
const DECIMAL_BYTES = 32;

function requireDecimals(values: Values): void {
  for (let i = 0; i < values.length; ++i) {
    const value = values[i];
    if (value instanceof Uint8Array && value.length > DECIMAL_BYTES) {
      throw new Error(`a decimal number of ${value.length} bytes`);
    }
  }
}

function encodingIn(header: Struct, id: number): string {
  const number = optionalCount(header, id, 'encoding');
  return number === null ? 'RLE' : (ENCODINGS[number] ?? String(number));
}

// The checksum of Parquet's pages: CRC-32 of gzip. Node 20 does not export its own.

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
