// TokenFileDataset: windows of a token file on disk, in raw, llm.c or Megatron format.

import { writeSync } from 'node:fs';
import { formatValue } from '../runtime/format-value.js';
import { argumentError, dataError } from '../runtime/input-errors.js';
import { onDisk } from '../runtime/on-disk.js';
import { namesOf, readOptions } from '../runtime/options.js';
import { requireType } from '../runtime/require-type.js';
import { required } from '../runtime/required.js';
import { absolutePath } from '../runtime/system-error.js';
import { writeWhole } from '../runtime/whole-file.js';
import type { Dataset, DatasetSource } from './dataset.js';
import { readIndex } from './megatron-index.js';
import { PositionalFile } from './positional-file.js';
import {
  bytesPerToken,
  decodeTokens,
  LLMC_HEADER_BYTES,
  parseLlmcHeader,
  type TokenDType,
} from './token-format.js';
import { countWindows, requireWindow, splitWindow, type TokenWindow } from './token-window.js';

/** Options of TokenFileDataset.open(). */
export interface TokenFileOptions {
  /** Path of the token file. */
  path: string;
  /** Tokens per window. */
  seq: number;
  /** Dtype of the tokens if the file has no header. Default: "u16", as in nanoGPT's files. */
  dtype?: 'u16' | 'u32';
}

/** Options of TokenFileDataset.openIndexed(). */
export interface IndexedTokenOptions {
  /** Path of the pair of files: with .bin, with .idx, or without an extension. */
  path: string;
  /** Tokens per window. */
  seq: number;
}

/** Where and how a file stores tokens. */
export interface TokenLayout {
  /** Path of the token file. */
  path: string;
  /** Dtype of a token. */
  dtype: TokenDType;
  /** Number of bytes before the first token. */
  offset: number;
  /** Number of tokens in the file. */
  tokens: number;
  /** Tokens per window. */
  seq: number;
}

/**
 * A dataset of windows of a token file. token-window.ts defines a window. A window is read when it
 * is requested, so the file may be larger than memory. Every thread opens the file for itself.
 */
export class TokenFileDataset implements Dataset<TokenWindow> {
  /** Number of windows. */
  readonly length: number;
  /** Where and how the file stores tokens. */
  readonly layout: TokenLayout;
  private readonly file: PositionalFile;

  /** Throws DS_DATA if the file has fewer than seq + 1 tokens. */
  constructor(layout: TokenLayout) {
    const { path, tokens, seq } = layout;
    this.length = countWindows(tokens, seq, path);
    // Threads start later, when the working directory may be another one.
    this.layout = { ...layout, path: absolutePath(path) };
    this.file = new PositionalFile(this.layout.path);
  }

  /**
   * Opens a file of little-endian tokens without a header (u16 or u32, as nanoGPT writes them), or
   * with the header of llm.c, which it detects. Throws DS_DATA if the size of the file does not
   * fit, DS_ARGUMENT for unknown or invalid options.
   */
  static open(given: TokenFileOptions): TokenFileDataset {
    const { path, seq, dtype } = readOptions(
      'TokenFileDataset.open',
      given,
      namesOf.TokenFileOptions,
    );
    requireType('TokenFileDataset.open path', path, 'string');
    const file = new PositionalFile(path);
    try {
      const { bytes } = file;
      const head = new Uint8Array(file.read(0, Math.min(bytes, LLMC_HEADER_BYTES)));
      const header = parseLlmcHeader(head, path);
      if (!header) return openRaw({ path, seq, dtype }, bytes);
      if (dtype && dtype !== header.dtype) {
        throw dataError(path, `tokens of dtype ${dtype}`, `a header with dtype ${header.dtype}`);
      }
      requireSize(path, bytes - LLMC_HEADER_BYTES, header.tokens * bytesPerToken(header.dtype));
      return new TokenFileDataset({ path, seq, offset: LLMC_HEADER_BYTES, ...header });
    } finally {
      file.close();
    }
  }

  /**
   * Opens Megatron's indexed dataset, PATH.bin and PATH.idx, as one sequence of all its tokens.
   * Throws DS_DATA if the index is damaged or does not fit PATH.bin; the error names the entry.
   * Throws DS_ARGUMENT for unknown or invalid options.
   */
  static openIndexed(given: IndexedTokenOptions): TokenFileDataset {
    const { path, seq } = readOptions(
      'TokenFileDataset.openIndexed',
      given,
      namesOf.IndexedTokenOptions,
    );
    requireType('TokenFileDataset.openIndexed path', path, 'string');
    const prefix = path.replace(/\.(bin|idx)$/, '');
    const data = new PositionalFile(`${prefix}.bin`);
    try {
      const index = readIndex(`${prefix}.idx`, data.bytes);
      return new TokenFileDataset({ path: data.path, seq, offset: 0, ...index });
    } finally {
      data.close();
    }
  }

  get source(): DatasetSource {
    return { module: __filename, export: 'buildTokenFileDataset', args: [this.layout] };
  }

  /**
   * Reads window `index`. Throws DS_INDEX if there is no such window, DS_DATA if the file was
   * truncated or contains an invalid token.
   */
  get(index: number): TokenWindow {
    requireWindow('TokenFileDataset.get', index, this.length);
    const { path, dtype, offset, seq } = this.layout;
    const size = bytesPerToken(dtype);
    const bytes = this.file.read(offset + index * seq * size, (seq + 1) * size);
    return splitWindow(decodeTokens(bytes, dtype, `${path}, window ${index}`));
  }

  /** Closes the file. The next get() opens it again. */
  close(): void {
    this.file.close();
  }
}

/** Builds the dataset in a worker thread. */
export function buildTokenFileDataset(layout: TokenLayout): TokenFileDataset {
  return new TokenFileDataset(layout);
}

function openRaw({ path, seq, dtype = 'u16' }: TokenFileOptions, bytes: number): TokenFileDataset {
  const size = bytesPerToken(requireFileDType(dtype));
  requireSize(path, bytes, Math.floor(bytes / size) * size);
  return new TokenFileDataset({ path, dtype, offset: 0, tokens: bytes / size, seq });
}

function requireSize(path: string, bytes: number, expected: number): void {
  if (bytes === expected) return;
  const hint = 'The file is truncated, or of another dtype.';
  throw dataError(path, `${expected} bytes of tokens`, `${bytes}`, hint);
}

function requireFileDType(dtype: unknown): 'u16' | 'u32' {
  if (dtype === 'u16' || dtype === 'u32') return dtype;
  throw argumentError(
    'dtype of a token file',
    '"u16" or "u32"',
    JSON.stringify(dtype) ?? String(dtype),
  );
}

/** Number of tokens that are converted and written at a time. */
const CHUNK = 1 << 20;

/**
 * Writes little-endian tokens without a header to a temporary file, which then replaces `path`.
 * Throws DS_DATA before any write if a token does not fit `dtype`. Throws DS_IO if a write fails;
 * an existing file then stays.
 */
export function writeTokenFile(
  path: string,
  tokens: ArrayLike<number>,
  dtype: 'u16' | 'u32' = 'u16',
): void {
  requireType('writeTokenFile path', path, 'string');
  if (typeof tokens !== 'object' || !Number.isInteger(tokens?.length))
    throw dataError('writeTokenFile', 'a list of numbers, or a typed array', formatValue(tokens));
  const limit = requireFileDType(dtype) === 'u16' ? 2 ** 16 : 2 ** 31;
  for (let i = 0; i < tokens.length; ++i) {
    const token = required(tokens[i]);
    if (!(Number.isInteger(token) && token >= 0 && token < limit)) {
      throw dataError(`${path}, token ${i}`, `an integer in [0, ${limit})`, String(token));
    }
  }
  const Type = dtype === 'u16' ? Uint16Array : Uint32Array;
  onDisk({ op: path, expected: 'a file that can be written' }, () =>
    writeWhole(path, (file) => {
      for (let first = 0; first < tokens.length; first += CHUNK) {
        const count = Math.min(CHUNK, tokens.length - first);
        const part = new Type(count);
        for (let i = 0; i < count; ++i) part[i] = required(tokens[first + i]);
        writeAll(file, new Uint8Array(part.buffer));
      }
    }),
  );
}

function writeAll(file: number, bytes: Uint8Array): void {
  for (let done = 0; done < bytes.length; ) done += writeSync(file, bytes, done);
}
