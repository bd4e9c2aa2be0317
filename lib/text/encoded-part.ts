// All rows of a part of a file as flat arrays, with what was counted on the way; as bytes they are
// the token cache.
import { createHash, randomUUID } from 'node:crypto';
import { readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

import { makeFolderNow } from '../runtime/make-folder.js';
import { IGNORED, RowEncoder, type RowSettings } from './row-encoder.js';
import type { FilePart } from './row-files.js';
import { rowsOf } from './row-reader.js';
import type { Tokenizer } from './tokenizer.js';
import { dataError } from './tokenizer-folder.js';

/** What became of rows. */
export interface RowCounts {
  /** Rows that were read. */
  rows: number;
  /** Rows without a token. */
  empty: number;
  /** Rows left out because the loss would count none of their tokens. */
  unlearned: number;
  /** Rows whose prompt does not end where a token ends; the token counts as prompt. */
  blurred: number;
}

/** Rows one after the other. */
export interface EncodedPart {
  ids: Int32Array;
  labels: Int32Array;
  /** Tokens of each row that was kept. */
  lengths: Int32Array;
  counts: RowCounts;
}

export const noCounts = (): RowCounts => ({ rows: 0, empty: 0, unlearned: 0, blurred: 0 });

/** Reads and encodes a part. Throws DS_DATA, naming file and line. */
export async function encodePart(
  part: FilePart,
  tokenizer: Tokenizer,
  settings: RowSettings,
): Promise<EncodedPart> {
  const encoder = new RowEncoder(tokenizer, settings);
  const counts = noCounts();
  const kept: { ids: Int32Array; labels: Int32Array }[] = [];
  for await (const { row, place } of rowsOf(part)) {
    const encoded = encoder.encode(row, place);
    counts.rows++;
    if (encoded.isBlurred) counts.blurred++;
    if (encoded.ids.length === 0) counts.empty++;
    else if (encoded.labels.every((label) => label === IGNORED)) counts.unlearned++;
    else kept.push(encoded);
  }
  const lengths = Int32Array.from(kept, ({ ids }) => ids.length);
  const total = lengths.reduce((sum, length) => sum + length, 0);
  return {
    ids: joined(
      kept.map(({ ids }) => ids),
      total,
    ),
    labels: joined(
      kept.map(({ labels }) => labels),
      total,
    ),
    lengths,
    counts,
  };
}

function joined(lists: readonly Int32Array[], total: number): Int32Array {
  const whole = new Int32Array(total);
  let at = 0;
  for (const list of lists) {
    whole.set(list, at);
    at += list.length;
  }
  return whole;
}

/** Changes when the bytes of a cache file mean something else. */
const VERSION = 1;

/**
 * The name of a part's tokens: of the file's content, the tokenizer and the settings, not of paths
 * or dates.
 */
export function cacheName(part: FilePart, tokenizer: Tokenizer, settings: RowSettings): string {
  const { digest, format, start, end } = part;
  const { fingerprint } = tokenizer;
  const key = JSON.stringify({ VERSION, digest, format, start, end, fingerprint, settings });
  return `${createHash('sha256').update(key).digest('hex').slice(0, 32)}.tokens`;
}

/** The part that a cache has; null where it has none that can be read, or one that is damaged. */
export function readCached(folder: string, name: string): EncodedPart | null {
  const bytes = bytesOf(join(folder, name));
  if (bytes === null) return null;
  const digest = bytes.subarray(0, 32);
  const content = bytes.subarray(32);
  if (!createHash('sha256').update(content).digest().equals(digest)) return null;
  const words = new Int32Array(
    content.buffer.slice(content.byteOffset, bytes.byteOffset + bytes.length),
  );
  const [rows, empty, unlearned, blurred, count, tokens] = words as unknown as [
    number,
    number,
    number,
    number,
    number,
    number,
  ];
  const at = 6;
  return {
    counts: { rows, empty, unlearned, blurred },
    lengths: words.slice(at, at + count),
    ids: words.slice(at + count, at + count + tokens),
    labels: words.slice(at + count + tokens),
  };
}

/** Null where no file can be read: what is written instead fails with the reason, if it must. */
function bytesOf(path: string): Buffer | null {
  try {
    return readFileSync(path);
  } catch {
    return null;
  }
}

/**
 * Writes beside and renames, so that others see all of it or none. Throws DS_DATA when it cannot be
 * written.
 */
export function writeCached(folder: string, name: string, part: EncodedPart): void {
  const { counts, ids, labels, lengths } = part;
  const { rows, empty, unlearned, blurred } = counts;
  const head = Int32Array.from([rows, empty, unlearned, blurred, lengths.length, ids.length]);
  const arrays = [head, lengths, ids, labels];
  const content = Buffer.concat(
    arrays.map((a) => Buffer.from(a.buffer, a.byteOffset, a.byteLength)),
  );
  const digest = createHash('sha256').update(content).digest();
  const draft = join(folder, `${name}.${randomUUID()}`);
  try {
    makeFolderNow(folder);
    writeFileSync(draft, Buffer.concat([digest, content]));
    renameSync(draft, join(folder, name));
  } catch (cause) {
    discard(draft);
    const hint = 'Give `cache` a folder that can be written, or leave it out.';
    throw dataError(folder, 'a token cache that can be written', (cause as Error).message, hint);
  }
}

/** Removes what could not be finished; that it cannot be removed says less than why it was not. */
function discard(draft: string): void {
  try {
    rmSync(draft, { force: true });
  } catch {
    // Nothing of it was written.
  }
}
