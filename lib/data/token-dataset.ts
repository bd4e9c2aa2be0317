// TokenDataset: a long run of tokens, cut into windows for next-token prediction.
import { readdirSync, readFileSync, statSync } from 'node:fs';
import { basename, join } from 'node:path';

import { DsError } from '../errors.js';
import type { Dataset } from './data-loader.js';

/** Token i of `targets` is the one that follows token i of `tokens`. Both have `seq` elements. */
export interface TokenWindow {
  tokens: Int32Array;
  targets: Int32Array;
}

export interface TextSource {
  /** A text file, or a folder whose text files are read in the order of their paths. */
  path: string;
  /** In a folder: which files, by name. Default: all. */
  match?: RegExp;
  /** A tokenizer. */
  encode: (text: string) => ArrayLike<number>;
  /** Tokens per window. */
  seq: number;
  /** Appended after every file, such as GPT-2's 50256. Default: nothing. */
  endOfText?: number;
}

/**
 * Window i covers tokens [i * seq, (i + 1) * seq] of the run: windows overlap by one token, which
 * is a target in one and an input in the next. A last window that is not full is left out.
 */
export class TokenDataset implements Dataset<TokenWindow> {
  readonly length: number;

  /**
   * `tokens` is kept, not copied; `place` names it in errors. Throws DS_DATA when no window is
   * full.
   */
  constructor(
    readonly tokens: Int32Array,
    readonly seq: number,
    place = 'TokenDataset',
  ) {
    if (!Number.isInteger(seq) || seq < 1) {
      throw dataError(place, 'a sequence length of at least 1', String(seq), '');
    }
    this.length = Math.floor((tokens.length - 1) / seq);
    if (this.length < 1) {
      const hint = 'Give more text, or use a shorter sequence.';
      throw dataError(place, `at least ${seq + 1} tokens`, `${tokens.length}`, hint);
    }
  }

  /**
   * Throws DS_DATA, naming the file, for data that cannot be read, is empty, binary or too short.
   */
  static fromText(source: TextSource): TokenDataset {
    const run = new TokenRun();
    for (const file of textFiles(source)) {
      run.append(source.encode(readText(file)), file);
      if (source.endOfText !== undefined) run.append([source.endOfText], file);
    }
    return new TokenDataset(run.finish(), source.seq, source.path);
  }

  /** Views of the run. Throws DS_INDEX. */
  get(index: number): TokenWindow {
    if (!Number.isInteger(index) || index < 0 || index >= this.length) {
      throw new DsError({
        code: 'DS_INDEX',
        op: 'TokenDataset.get',
        expected: `a window of [0, ${this.length})`,
        got: String(index),
      });
    }
    const start = index * this.seq;
    const end = start + this.seq;
    return {
      tokens: this.tokens.subarray(start, end),
      targets: this.tokens.subarray(start + 1, end + 1),
    };
  }
}

/** An Int32Array that grows. */
class TokenRun {
  private tokens = new Int32Array(1 << 16);
  private length = 0;

  append(more: ArrayLike<number>, file: string): void {
    while (this.length + more.length > this.tokens.length) {
      const larger = new Int32Array(2 * this.tokens.length);
      larger.set(this.tokens);
      this.tokens = larger;
    }
    for (let i = 0; i < more.length; ++i) {
      const token = more[i] as number;
      if ((token | 0) !== token || token < 0) {
        throw dataError(file, 'token numbers from the tokenizer', String(token), '');
      }
      this.tokens[this.length++] = token;
    }
  }

  finish(): Int32Array {
    return this.tokens.slice(0, this.length);
  }
}

function textFiles({ path, match }: TextSource): string[] {
  try {
    if (!statSync(path).isDirectory()) return [path];
    const entries = readdirSync(path, { recursive: true, withFileTypes: true });
    const files = entries
      .filter((entry) => entry.isFile() && (!match || match.test(entry.name)))
      .map((entry) => join(entry.parentPath ?? entry.path, entry.name))
      .sort();
    if (files.length > 0) return files;
  } catch (cause) {
    throw unreadable(path, cause as Error);
  }
  const wanted = match ? `files that match ${match}` : 'text files';
  throw dataError(path, `a folder with ${wanted}`, 'none', 'Check the path.');
}

function readText(file: string): string {
  let bytes: Uint8Array;
  try {
    bytes = readFileSync(file);
  } catch (cause) {
    throw unreadable(file, cause as Error);
  }
  try {
    return new TextDecoder('utf-8', { fatal: true }).decode(bytes);
  } catch {
    const hint = `Leave ${basename(file)} out with \`match\`, or convert it to UTF-8.`;
    throw dataError(file, 'UTF-8 text', 'other bytes', hint);
  }
}

function unreadable(path: string, cause: Error): DsError {
  const hint = 'Check the path, and who may read it.';
  return dataError(path, 'a readable file or folder', cause.message, hint);
}

function dataError(op: string, expected: string, got: string, hint: string): DsError {
  return new DsError({ code: 'DS_DATA', op, expected, got, hint });
}
