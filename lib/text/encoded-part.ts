// All rows of a part of a file as flat arrays, with counts.
import { IGNORED, RowEncoder, type RowSettings } from './row-encoder.js';
import type { FilePart } from './row-files.js';
import { rowsOf } from './row-reader.js';
import type { Tokenizer } from './tokenizer.js';

/** Counts of rows. */
export interface RowCounts {
  /** Rows that were read. */
  rows: number;
  /** Rows without a token. */
  empty: number;
  /** Rows left out because the loss counts no token of them. */
  unlearned: number;
  /** Rows with a token that spans the end of the prompt. The token counts as prompt. */
  blurred: number;
  /** With the loss "assistant": rows with an answer before a special token that is not learned. */
  unended: number;
}

/** Rows one after the other. */
export interface EncodedPart {
  ids: Int32Array;
  labels: Int32Array;
  /** Tokens of each row that was kept. */
  lengths: Int32Array;
  counts: RowCounts;
}

export const noCounts = (): RowCounts => ({
  rows: 0,
  empty: 0,
  unlearned: 0,
  blurred: 0,
  unended: 0,
});

/** Reads and encodes a part. Throws DS_DATA, naming file and line. */
export async function encodePart(
  part: FilePart,
  tokenizer: Tokenizer,
  settings: RowSettings,
): Promise<EncodedPart> {
  const encoder = new RowEncoder(tokenizer, settings);
  const counts = noCounts();
  const kept: { ids: Int32Array; labels: Int32Array }[] = [];
  for await (const { row, location } of rowsOf(part)) {
    const encoded = encoder.encode(row, location);
    counts.rows++;
    if (encoded.isBlurred) counts.blurred++;
    if (encoder.isUnended(encoded)) counts.unended++;
    if (encoded.ids.length === 0) counts.empty++;
    else if (encoded.labels.every((label) => label === IGNORED)) counts.unlearned++;
    else kept.push(encoded);
  }
  const lengths = Int32Array.from(kept, ({ ids }) => ids.length);
  const total = lengths.reduce((sum, length) => sum + length, 0);
  const [ids, labels] = [new Int32Array(total), new Int32Array(total)];
  let at = 0;
  for (const row of kept) {
    ids.set(row.ids, at);
    labels.set(row.labels, at);
    at += row.ids.length;
  }
  return { ids, labels, lengths, counts };
}
