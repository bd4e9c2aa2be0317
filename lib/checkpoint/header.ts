// Encodes and parses the header of a safetensors file, which lists the tensors by name. Format: 8
// bytes with the little-endian length of the JSON, the JSON, then the data without gaps.

import { DsError } from '../errors.js';
import { type DType, dtypeSize } from '../runtime/dtype.js';
import { isObject } from '../runtime/is-object.js';
import { leading } from '../runtime/required.js';
import { errorMessage } from '../runtime/system-error.js';
import { numel } from '../runtime/view.js';

/** Texts by name that a file contains in addition to its tensors. */
export type FileMetadata = Readonly<Record<string, string>>;

/** A tensor's position in the file. `start` and `end` count bytes from the end of the header. */
export interface TensorEntry {
  readonly name: string;
  readonly dtype: DType;
  readonly shape: readonly number[];
  readonly start: number;
  readonly end: number;
  /**
   * The dtype name in the file if the bytes are codes; `dtype` then only reads them. Absent:
   * values.
   */
  readonly code?: CodeDType;
}

/** Dtypes of codes that become weights with a scale: one code per byte, or several per word. */
type CodeDType = 'F8_E4M3' | 'I8' | 'U32';
/** The dtype for reading the bytes of codes. */
const CODES = new Map<unknown, DType>([
  ['F8_E4M3', 'u8'],
  ['I8', 'u8'],
  ['U32', 'i32'],
] satisfies [CodeDType, DType][]);

/** The contents of a header. */
interface FileHeader {
  entries: TensorEntry[];
  metadata: FileMetadata;
}

/** Bytes before the JSON: its length. */
export const PREFIX_BYTES = 8;
/** Maximum bytes of a header, the same as in the safetensors library. */
export const MAX_HEADER_BYTES = 100_000_000;

const ALIGNMENT = 64;
const MAX_DIMS = 32;
const METADATA = '__metadata__';

const NAMES: Record<DType, string> = {
  f32: 'F32',
  f16: 'F16',
  bf16: 'BF16',
  i32: 'I32',
  i64: 'I64',
  u8: 'U8',
  bool: 'BOOL',
  f64: 'F64',
};
const DTYPES = new Map(Object.entries(NAMES).map(([dtype, name]) => [name, dtype as DType]));

/** Dtypes of safetensors that this library does not read. Source: safetensors' Dtype. */
const NOT_READ: readonly unknown[] = [
  'F4',
  'F6_E2M3',
  'F6_E3M2',
  'F8_E4M3',
  'F8_E5M2',
  'F8_E8M0',
  'F8_E4M3FNUZ',
  'F8_E5M2FNUZ',
  'I8',
  'I16',
  'U16',
  'U32',
  'U64',
  'C64',
];

const DAMAGED = 'The file is damaged, or is not a safetensors file.';
const UNREAD =
  'Weights of this dtype are not supported; docs/quantization.md lists supported folders.';

interface EncodedHeader {
  /** Length and JSON. Spaces pad the JSON so that the data starts at a multiple of 64 bytes. */
  bytes: Uint8Array;
  entries: TensorEntry[];
}

/**
 * Encodes the header of tensors that follow each other without gaps. Their names must be distinct.
 * `metadata` is stored in addition to the format.
 */
export function encodeHeader(
  tensors: readonly { name: string; dtype: DType; shape: readonly number[] }[],
  metadata: FileMetadata = {},
): EncodedHeader {
  const table = new Map<string, object>([[METADATA, { format: 'pt', ...metadata }]]);
  const entries: TensorEntry[] = [];
  let at = 0;
  for (const { name, dtype, shape } of tensors) {
    const end = at + numel(shape) * dtypeSize(dtype);
    table.set(name, { dtype: NAMES[dtype], shape, data_offsets: [at, end] });
    entries.push({ name, dtype, shape: [...shape], start: at, end });
    at = end;
  }
  const json = Buffer.from(JSON.stringify(Object.fromEntries(table)), 'utf8');
  const total = Math.ceil((PREFIX_BYTES + json.length) / ALIGNMENT) * ALIGNMENT;
  const bytes = Buffer.alloc(total, ' ');
  bytes.writeBigUInt64LE(BigInt(total - PREFIX_BYTES), 0);
  json.copy(bytes, PREFIX_BYTES);
  return { bytes, entries };
}

/**
 * Returns the number of bytes of the JSON. `prefix`: the first eight bytes of a file of `fileBytes`
 * bytes. Throws DS_CHECKPOINT if the header exceeds the file or MAX_HEADER_BYTES.
 */
export function headerLength(prefix: Uint8Array, fileBytes: number, file: string): number {
  const view = new DataView(prefix.buffer, prefix.byteOffset, prefix.byteLength);
  const length = prefix.length < PREFIX_BYTES ? 0n : view.getBigUint64(0, true);
  const limit = Math.min(MAX_HEADER_BYTES, fileBytes - PREFIX_BYTES);
  if (length < 2n || length > BigInt(Math.max(limit, 0))) {
    throw damagedError(file, `a header of 2 to ${limit} bytes`, `${length} bytes`);
  }
  return Number(length);
}

/**
 * Parses the JSON of a header. Returns the metadata, and the tensors in the order of their bytes.
 * `dataBytes`: bytes after the header. `hasCodes`: whether tensors may have the dtype of codes.
 * Throws DS_CHECKPOINT unless every entry is valid and the entries cover the data without gap or
 * overlap.
 */
export function parseHeader(
  json: Uint8Array,
  dataBytes: number,
  file: string,
  hasCodes = false,
): FileHeader {
  const { [METADATA]: texts = {}, ...table } = parseJson(json, file);
  const metadata = parseMetadata(texts, file);
  const entries: TensorEntry[] = [];
  for (const [name, value] of Object.entries(table)) {
    entries.push(parseEntry(name, value, { file, hasCodes }));
  }
  entries.sort((a, b) => a.start - b.start || a.end - b.end);
  let at = 0;
  for (const { name, start, end } of entries) {
    if (start !== at) throw damagedError(`${file}: ${name}`, `data at byte ${at}`, `${start}`);
    at = end;
  }
  if (at !== dataBytes) throw damagedError(file, `${at} bytes of data`, `${dataBytes}`);
  return { entries, metadata };
}

function parseJson(json: Uint8Array, file: string): Record<string, unknown> {
  try {
    const text = new TextDecoder('utf-8', { fatal: true }).decode(json);
    const value: unknown = JSON.parse(text);
    if (isObject(value) && text.startsWith('{')) return value;
  } catch (cause) {
    throw damagedError(file, 'a JSON header', errorMessage(cause));
  }
  throw damagedError(file, 'a JSON object as header', 'another JSON value');
}

function parseMetadata(value: unknown, file: string): FileMetadata {
  const isTexts = isObject(value) && Object.values(value).every((item) => typeof item === 'string');
  if (isTexts) return value as FileMetadata;
  throw damagedError(`${file}: ${METADATA}`, 'an object of strings', formatField(value));
}

function parseEntry(
  name: string,
  value: unknown,
  { file, hasCodes }: { file: string; hasCodes: boolean },
): TensorEntry {
  const location = `${file}: ${name}`;
  if (!isObject(value) || Object.keys(value).length !== 3) {
    throw damagedError(
      location,
      'an object with dtype, shape and data_offsets',
      formatField(value),
    );
  }
  const code = hasCodes && CODES.has(value.dtype) ? (value.dtype as CodeDType) : null;
  const dtype = code ? CODES.get(code) : DTYPES.get(String(value.dtype));
  if (!dtype) throw unreadDType(location, value.dtype);
  const { shape, data_offsets: offsets } = value;
  if (!isCounts(shape) || shape.length > MAX_DIMS)
    throw damagedError(location, `a shape of at most ${MAX_DIMS} dims`, formatField(shape));
  if (!isCounts(offsets) || offsets.length !== 2) {
    throw damagedError(location, 'two data_offsets', formatField(offsets));
  }
  const [start, end] = leading(offsets, 2);
  const bytes = shape.reduce((n, size) => n * BigInt(size), BigInt(dtypeSize(dtype)));
  if (end < start || BigInt(end - start) !== bytes) {
    throw damagedError(location, `${bytes} bytes for ${dtype} [${shape}]`, `[${start}, ${end})`);
  }
  return { name, dtype, shape, start, end, ...(code && { code }) };
}

/** Returns the error for a tensor with a dtype that this library does not read. */
export function unreadDType(location: string, dtype: unknown): DsError {
  const hint = NOT_READ.includes(dtype) ? UNREAD : DAMAGED;
  return damagedError(location, [...DTYPES.keys()].join(', '), formatField(dtype), hint);
}

function isCounts(value: unknown): value is number[] {
  return Array.isArray(value) && value.every((item) => Number.isSafeInteger(item) && item >= 0);
}

function formatField(value: unknown): string {
  const text = JSON.stringify(value) ?? 'nothing';
  return text.length > 80 ? `${text.slice(0, 80)}...` : text;
}

function damagedError(location: string, expected: string, got: string, hint = DAMAGED): DsError {
  return new DsError({ code: 'DS_CHECKPOINT', op: location, expected, got, hint });
}
