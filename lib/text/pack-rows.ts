// Packs encoded rows into samples, and counts every row.
import { required } from '../runtime/required.js';
import { emptyCounts, type RowCounts } from './encoded-part.js';
import { cutPieces, type Overlong, type Piece, packBestFit } from './packing.js';
import { IGNORED } from './row-encoder.js';
import type { TokenRun } from './sample.js';

/** Counts of rows, samples and tokens. */
export interface TextReport extends RowCounts {
  /** Rows that lost tokens because they are longer than a sample. */
  cutRows: number;
  /** Tokens lost from these rows. */
  cutTokens: number;
  /** Number of samples. */
  samples: number;
  /** Tokens in samples, without padding. */
  tokens: number;
  /** Tokens in samples that are learned. */
  learned: number;
}

export const emptyReport = (): TextReport => ({
  ...emptyCounts(),
  cutRows: 0,
  cutTokens: 0,
  samples: 0,
  tokens: 0,
  learned: 0,
});

/** Adds the counts of `more` to `report`. */
export function addCounts(report: TextReport, more: Partial<TextReport>): void {
  for (const [key, count] of Object.entries(more)) report[key as keyof TextReport] += count;
}

/**
 * Returns the pieces of each sample, without pieces that have no token to learn. Adds to the counts
 * in `report`.
 */
export function packRows(
  run: TokenRun,
  lengths: ArrayLike<number>,
  options: { length: number; overlong: Overlong; packing: boolean },
  report: TextReport,
): Piece[][] {
  const { pieces, cutRows, cutTokens } = cutPieces(lengths, options.length, options.overlong);
  const learned = pieces.map((piece) => countLearned(run, piece));
  const learning = pieces.filter((_, i) => required(learned[i]) > 0);
  const samples = options.packing
    ? packBestFit(learning, options.length)
    : learning.map((piece) => [piece]);
  addCounts(report, {
    cutRows,
    cutTokens,
    samples: samples.length,
    unlearned: pieces.length - learning.length,
    tokens: learning.reduce((sum, { length }) => sum + length, 0),
    learned: learned.reduce((sum, count) => sum + count, 0),
  });
  return samples;
}

/**
 * Returns the number of learned tokens in a piece. Its first token is never learned, because no
 * token precedes it.
 */
function countLearned({ labels }: TokenRun, { start, length }: Piece): number {
  let count = 0;
  for (let i = start + 1; i < start + length; ++i) if (labels[i] !== IGNORED) count++;
  return count;
}

/** Warns if the model cannot learn to end its answers. */
export function warnUnended(files: readonly string[], { unended, rows }: TextReport): void {
  if (unended === 0) return;
  const text = `${files.join(', ')}: in ${unended} of ${rows} rows, the special token behind an answer is not learned. A model trained on these rows does not learn to end its answers. Move {% endgeneration %} behind the end-of-turn token in the chat template.`;
  process.emitWarning(text, { type: 'DsWarning', code: 'DS_DATA' });
}
