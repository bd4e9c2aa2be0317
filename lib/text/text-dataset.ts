// TextDataset: tokenized rows of files in memory, packed into samples.

import type { Dataset, DatasetSource } from '../data/index.js';
import { DsError } from '../errors.js';
import { dataError } from '../runtime/input-errors.js';
import { namesOf, readOptions } from '../runtime/options.js';
import { required } from '../runtime/required.js';
import { EncodePool } from './encode-pool.js';
import type { EncodedPart } from './encoded-part.js';
import { addCounts, emptyReport, packRows, type TextReport, warnUnended } from './pack-rows.js';
import type { Piece } from './packing.js';
import { divideFiles } from './row-files.js';
import { buildSample, type TextSample, type TokenRun } from './sample.js';
import { readTextSettings, type TextOptions, type TextSettings } from './text-options.js';

/** Samples as typed arrays, which threads share. */
interface SharedSamples extends TokenRun {
  /** Start and length of each piece. */
  starts: Float64Array;
  lengths: Int32Array;
  /** Index of the first piece of each sample, then the number of pieces. */
  firsts: Int32Array;
  /** Tokens of a sample; 0 if the length of its pieces decides. */
  length: number;
  pad: number;
}

/**
 * Tokenized samples of text and chats in memory; open() creates it. All threads read the same
 * memory, so a DataLoader with workers can use it.
 */
export class TextDataset implements Dataset<TextSample> {
  /** Number of samples. */
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
   * of their document; collateSamples() batches them. Throws DS_DATA with file and line if a row
   * cannot be read or no row has a token to learn, DS_ARGUMENT for an invalid option.
   */
  static async open(given: TextOptions): Promise<TextDataset> {
    const op = 'TextDataset.open';
    const settings = readTextSettings(op, readOptions(op, given, namesOf.TextOptions));
    const pool = new EncodePool(settings.pool);
    const parts: EncodedPart[] = [];
    try {
      const { files, columns } = settings;
      const planned = await divideFiles(files, settings.pool.cache !== null, columns);
      for await (const part of pool.encode(planned)) parts.push(part);
    } finally {
      await pool.close();
    }
    return TextDataset.fromParts(parts, settings);
  }

  private static fromParts(parts: readonly EncodedPart[], settings: TextSettings): TextDataset {
    const { length, overlong, packing, pad } = settings;
    const lengths = parts.flatMap((part) => [...part.lengths]);
    const run = {
      ids: shareRun(parts.map(({ ids }) => ids)),
      labels: shareRun(parts.map(({ labels }) => labels)),
    };
    const report = emptyReport();
    for (const { counts } of parts) addCounts(report, counts);
    const samples = packRows(run, lengths, { length, overlong, packing }, report);
    if (samples.length === 0) throw noSamplesError(settings.files, report);
    warnUnended(settings.files, report);
    return new TextDataset(
      { ...run, ...sharePieces(samples), length: packing ? length : 0, pad },
      report,
    );
  }

  /** Creates the dataset in a worker thread. */
  static fromShared(shared: SharedSamples): TextDataset {
    return new TextDataset(shared, null);
  }

  /** @internal The largest token id of all samples. */
  get largestId(): number {
    return this.shared.ids.reduce((largest, id) => Math.max(largest, id), 0);
  }

  get source(): DatasetSource {
    return { module: __filename, export: 'textDataset', args: [this.shared] };
  }

  /** Returns a sample. Throws DS_INDEX if `index` is out of range. */
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
    const sampleLength = length || pieces.reduce((sum, piece) => sum + piece.length, 0);
    return buildSample(this.shared, pieces, sampleLength, pad);
  }
}

/** Creates the dataset in a worker thread. */
export function textDataset(shared: SharedSamples): TextDataset {
  return TextDataset.fromShared(shared);
}

function shareRun(lists: readonly Int32Array[]): Int32Array {
  const total = lists.reduce((sum, list) => sum + list.length, 0);
  const run = new Int32Array(new SharedArrayBuffer(4 * total));
  let at = 0;
  for (const list of lists) {
    run.set(list, at);
    at += list.length;
  }
  return run;
}

function sharePieces(
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

function noSamplesError(files: readonly string[], report: TextReport): DsError {
  const { rows, empty, unlearned, cutRows } = report;
  const location = files.slice(0, 3).join(', ');
  if (rows === 0) {
    const hint = 'Write a row on each line, such as {"text": "..."}: docs/text.md lists the kinds.';
    return dataError(location, 'at least one row', 'none: the file is empty', hint);
  }
  const got = `${rows} rows: ${empty} empty, ${unlearned} without one, ${cutRows} cut or left out`;
  const hint = 'A larger `length` (--max_length), or another `loss`, keeps more of them.';
  return dataError(location, 'rows with a token to learn', got, hint);
}
