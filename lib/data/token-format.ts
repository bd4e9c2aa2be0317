// Dtypes of tokens in files, and the header of llm.c's token files.

import { dataError } from '../runtime/input-errors.js';
import { required } from '../runtime/required.js';

/** Dtypes of tokens in files. */
export type TokenDType = 'u8' | 'i8' | 'i16' | 'u16' | 'i32' | 'u32' | 'i64' | 'u64';

const TOKEN_BYTES: Record<TokenDType, number> = {
  u8: 1,
  i8: 1,
  i16: 2,
  u16: 2,
  i32: 4,
  u32: 4,
  i64: 8,
  u64: 8,
};

/** Returns the number of bytes of a token. */
export function bytesPerToken(dtype: TokenDType): number {
  return TOKEN_BYTES[dtype];
}

/**
 * Decodes little-endian tokens to i32. Throws DS_DATA with `location` if a token is negative or
 * does not fit i32.
 */
export function decodeTokens(bytes: ArrayBuffer, dtype: TokenDType, location: string): Int32Array {
  if (dtype === 'u8') return new Int32Array(new Uint8Array(bytes));
  if (dtype === 'u16') return new Int32Array(new Uint16Array(bytes));
  if (dtype === 'i64' || dtype === 'u64') return narrowTokens(new BigUint64Array(bytes), location);
  const tokens =
    dtype === 'i8'
      ? new Int32Array(new Int8Array(bytes))
      : dtype === 'i16'
        ? new Int32Array(new Int16Array(bytes))
        : new Int32Array(bytes);
  for (let i = 0; i < tokens.length; ++i) {
    if (required(tokens[i]) < 0) throw tokenError(location, i, required(tokens[i]));
  }
  return tokens;
}

function narrowTokens(wide: BigUint64Array, location: string): Int32Array {
  const tokens = new Int32Array(wide.length);
  for (let i = 0; i < wide.length; ++i) {
    const token = required(wide[i]);
    if (token > 0x7fffffffn) throw tokenError(location, i, BigInt.asIntN(64, token));
    tokens[i] = Number(token);
  }
  return tokens;
}

function tokenError(location: string, at: number, token: number | bigint): Error {
  const hint = 'The file may be damaged, or of another dtype.';
  return dataError(`${location}, token ${at}`, 'an integer in [0, 2^31)', String(token), hint);
}

/**
 * Bytes of llm.c's header: 256 32-bit integers. The first three are magic, version and number of
 * tokens.
 */
export const LLMC_HEADER_BYTES = 1024;

/** The headers that llm.c writes. Source: dev/data/data_common.py of llm.c. */
const LLMC_FORMATS: { magic: number; version: number; dtype: TokenDType }[] = [
  { magic: 20240520, version: 1, dtype: 'u16' },
  { magic: 20240801, version: 7, dtype: 'u32' },
];

/**
 * Parses llm.c's header. Returns null if the file starts with tokens: they cannot look like a
 * header, because its first two values exceed the vocabularies of these dtypes. Throws DS_DATA for
 * an unknown version.
 */
export function parseLlmcHeader(
  head: Uint8Array,
  location: string,
): { dtype: TokenDType; tokens: number } | null {
  if (head.byteLength < LLMC_HEADER_BYTES) return null;
  const view = new DataView(head.buffer, head.byteOffset, head.byteLength);
  const format = LLMC_FORMATS.find(({ magic }) => magic === view.getInt32(0, true));
  if (!format) return null;
  const version = view.getInt32(4, true);
  if (version !== format.version) {
    throw dataError(location, `version ${format.version} in its header`, String(version));
  }
  const tokens = view.getInt32(8, true);
  if (tokens >= 0) return { dtype: format.dtype, tokens };
  throw dataError(location, 'a number of tokens from 0 in its header', String(tokens));
}
