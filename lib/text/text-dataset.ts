// TextDataset: rows of files as tokens in memory, packed into samples of one length.

import type { Dataset, DatasetSource } from '../data/index.js';
import { DsError } from '../errors.js';
import { dataError } from '../runtime/input-errors.js';
import { readOptions } from '../runtime/options.js';
import { required } from '../runtime/required.js';
import { EncodePool } from './encode-pool.js';
import type { EncodedPart } from './encoded-part.js';
import { addCounts, noReport, packRows, type TextReport, warnOfUnended } from './pack-rows.js';
import type { Piece } from './packing.js';
import { partsOf } from './row-files.js';
import { sampleOf, type TextSample, type TokenRun } from './sample.js';
import { TEXT_OPTIONS, type TextOptions, type TextSettings, textSettings } from './text-options.js';

/** The samples as plain numbers, which threads share. */
interface SharedSamples extends TokenRun {
  /** Starts and lengths of pieces. */
  starts: Float64Array;
  lengths: Int32Array;
  /** The first piece of each sample and, last, the number of pieces. */
  firsts: Int32Array;
  /** Tokens of a sample; with 0, its pieces decide. */
  length: number;
  pad: number;
}

/**
 * Samples of text and chats, in memory as tokens; open() creates it. Every thread reads the same
 * memory, so it can be given to a DataLoader with workers.
 */
export class TextDataset implements Dataset<TextSample> {
  /** Samples. */
  readonly length: number;

  private constructor(
    private readonly shared: SharedSamples,
    /** Counts of rows; null for the dataset of a worker thread. */
    readonly report: TextReport | null,
  ) {
    this.length = shared.firsts.length - 1;
  }

  /**
   * Reads all files on threads and packs their rows. Samples depend only on the files and options,
   * not on threads or the cache. Packed samples have `length` tokens. Other samples have the length
   * of their document; collateSamples() makes batches of them. Throws DS_DATA with file and line if
   * a row cannot be read or no row has a token to learn. Throws DS_ARGUMENT.
   */
  static async open(given: TextOptions): Promise<TextDataset> {
    const op = 'TextDataset.open';
    const settings = textSettings(op, readOptions(op, given, TEXT_OPTIONS));
    const pool = new EncodePool(settings.pool);
    const parts: EncodedPart[] = [];
    try {
      const planned = await partsOf(settings.files, settings.pool.cache !== null);
      for await (const part of pool.encode(planned)) parts.push(part);
    } finally {
      await pool.close();
    }
    return TextDataset.packed(parts, settings);
  }

  private static packed(parts: readonly EncodedPart[], settings: TextSettings): TextDataset {
    const { length, overlong, packing, pad } = settings;
    const lengths = parts.flatMap((part) => [...part.lengths]);
    const run = {
      ids: sharedRun(parts.map(({ ids }) => ids)),
      labels: sharedRun(parts.map(({ labels }) => labels)),
    };
    const report = noReport();
    for (const { counts } of parts) addCounts(report, counts);
    const samples = packRows(run, lengths, { length, overlong, packing }, report);
    if (samples.length === 0) throw nothingLeft(settings.files, report);
    warnOfUnended(settings.files, report);
    return new TextDataset(
      { ...run, ...sharedPieces(samples), length: packing ? length : 0, pad },
      report,
    );
  }

  /** Entry point for worker threads. */
  static ofShared(shared: SharedSamples): TextDataset {
    return new TextDataset(shared, null);
  }

  get source(): DatasetSource {
    return { module: __filename, export: 'textDataset', args: [this.shared] };
  }

  /** Throws DS_INDEX if `index` is out of range. */
  get(index: number): TextSample {
    const { firsts, starts, lengths, length, pad } = this.shared;
    if (!Number.isInteger(index) || index < 0 || index >= this.length) {
      const expected = `a sample of [0, ${this.length})`;
      throw new DsError({ code: 'DS_INDEX', op: 'TextDataset.get', expected, got: String(index) });
    }
    const pieces: Piece[] = [];
    for (let p = required(firsts[index]); p < required(firsts[index + 1]); ++p) {
      pieces.push({ start: required(starts[p]), length: required(lengths[p]) });
    }
    const whole = length || pieces.reduce((sum, piece) => sum + piece.length, 0);
    return sampleOf(this.shared, pieces, whole, pad);
  }
}

/** Entry point for worker threads. */
export function textDataset(shared: SharedSamples): TextDataset {
  return TextDataset.ofShared(shared);
}

function sharedRun(lists: readonly Int32Array[]): Int32Array {
  const total = lists.reduce((sum, list) => sum + list.length, 0);
  const run = new Int32Array(new SharedArrayBuffer(4 * total));
  let at = 0;
  for (const list of lists) {
    run.set(list, at);
    at += list.length;
  }
  return run;
}

function sharedPieces(
  samples: readonly Piece[][],
): Pick<SharedSamples, 'starts' | 'lengths' | 'firsts'> {
  const pieces = samples.flat();
  const starts = new Float64Array(new SharedArrayBuffer(8 * pieces.length));
  const lengths = new Int32Array(new SharedArrayBuffer(4 * pieces.length));
  const firsts = new Int32Array(new SharedArrayBuffer(4 * (samples.length + 1)));
  pieces.forEach((piece, p) => {
    starts[p] = piece.start;
    lengths[p] = piece.length;
  });
  samples.forEach((sample, s) => {
    firsts[s + 1] = required(firsts[s]) + sample.length;
  });
  return { starts, lengths, firsts };
}

function nothingLeft(files: readonly string[], report: TextReport): DsError {
  const { rows, empty, unlearned, cutRows } = report;
  const got = `${rows} rows: ${empty} empty, ${unlearned} without one, ${cutRows} cut or left out`;
  const hint = 'A larger `length` (--max_length), or another `loss`, keeps more of them.';
  return dataError(files.slice(0, 3).join(', '), 'rows with a token to learn', got, hint);
}
