// Encodes all rows of a part of a file to flat arrays, and counts them.
import { IGNORED, RowEncoder, type RowSettings } from './row-encoder.js';
import type { FilePart } from './row-files.js';
import { readRows } from './row-reader.js';
import type { Tokenizer } from './tokenizer.js';

/** Counts of rows by their handling. */
export interface RowCounts {
  /** Number of rows read. */
  rows: number;
  /** Rows without tokens. */
  empty: number;
  /** Rows left out because no token of them is learned. */
  unlearned: number;
  /** Rows in which a token spans the end of the prompt. The token counts as prompt. */
  blurred: number;
  /** With the loss "assistant": rows in which the special token after an answer is not learned. */
  unended: number;
}

/** Concatenated rows. */
export interface EncodedPart {
  ids: Int32Array;
  labels: Int32Array;
  /** Number of tokens of each kept row. */
  lengths: Int32Array;
  counts: RowCounts;
}

export const emptyCounts = (): RowCounts => ({
  rows: 0,
  empty: 0,
  unlearned: 0,
  blurred: 0,
  unended: 0,
});

/** Reads and encodes a part. Throws DS_DATA with file and line. */
export async function encodePart(
  part: FilePart,
  tokenizer: Tokenizer,
  settings: RowSettings,
): Promise<EncodedPart> {
  const encoder = new RowEncoder(tokenizer, settings);
  const counts = emptyCounts();
  const encodedRows: { ids: Int32Array; labels: Int32Array }[] = [];
  for await (const { row, location } of readRows(part)) {
    const encoded = encoder.encode(row, location);
    counts.rows++;
    if (encoded.isBlurred) counts.blurred++;
    if (encoder.isUnended(encoded)) counts.unended++;
    if (encoded.ids.length === 0) counts.empty++;
    else if (encoded.labels.every((label) => label === IGNORED)) counts.unlearned++;
    else encodedRows.push(encoded);
  }
  const lengths = Int32Array.from(encodedRows, ({ ids }) => ids.length);
  const total = lengths.reduce((sum, length) => sum + length, 0);
  const [ids, labels] = [new Int32Array(total), new Int32Array(total)];
  let at = 0;
  for (const row of encodedRows) {
    ids.set(row.ids, at);
    labels.set(row.labels, at);
    at += row.ids.length;
  }
  return { ids, labels, lengths, counts };
}
