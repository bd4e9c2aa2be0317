// TextStream: rows of files that need not fit memory, as batches in an order that a seed decides
// and a checkpoint resumes.

import type { JsonObject } from '../../types/json.js';
import { shuffledOrder } from '../data/order.js';
import { DsError } from '../errors.js';
import { type Device, device as findDevice } from '../runtime/device.js';
import { argumentError, dataError } from '../runtime/input-errors.js';
import { type OptionNames, readOptions } from '../runtime/options.js';
import { requireInteger } from '../runtime/require-number.js';
import { requireType } from '../runtime/require-type.js';
import { defined, required } from '../runtime/required.js';
import { EncodePool } from './encode-pool.js';
import type { EncodedPart } from './encoded-part.js';
import { addCounts, noReport, packRows, type TextReport, warnOfUnended } from './pack-rows.js';
import { type FilePart, partsOf } from './row-files.js';
import {
  collateSamples,
  sampleOf,
  type TextBatch,
  type TextSample,
  type TokenRun,
} from './sample.js';
import { TEXT_OPTIONS, type TextOptions, type TextSettings, textSettings } from './text-options.js';

/** Options of a TextStream. */
export interface TextStreamOptions extends TextOptions {
  /** Samples per batch of this rank. Default 1. */
  batchSize?: number;
  /** Device of the batches. Default "cpu". */
  device?: Device | string;
  /**
   * Reads parts of files in a new order in every epoch, and mixes rows within the buffer. Default
   * true.
   */
  shuffle?: boolean;
  /** Rows that are held, mixed and packed together. Default 1000. */
  shuffleBuffer?: number;
  /** Decides the order; the same on every rank. Default 0. */
  seed?: number;
  /** Number of this rank. Default 0. */
  rank?: number;
  /** Ranks that share the samples. Default 1. */
  worldSize?: number;
  /** Rounds the length of rows that are not packed up to a multiple of this. Default 1. */
  padToMultipleOf?: number;
}

const OPTIONS: OptionNames<TextStreamOptions> = {
  ...TEXT_OPTIONS,
  batchSize: true,
  device: true,
  shuffle: true,
  shuffleBuffer: true,
  seed: true,
  rank: true,
  worldSize: true,
  padToMultipleOf: true,
};

/** Where a buffer begins: its number in the epoch, and the part and row of its first row. */
interface BufferStart {
  window: number;
  part: number;
  row: number;
}

/** Where a stream is: `skip` samples of the buffer have been served, to all ranks together. */
interface Position extends BufferStart {
  epoch: number;
  skip: number;
}

/** A buffer's samples, and where the next one begins. */
interface Window {
  start: BufferStart;
  next: BufferStart;
  samples: TextSample[];
}

interface StreamSettings extends TextSettings {
  batchSize: number;
  device: Device;
  shuffle: boolean;
  shuffleBuffer: number;
  seed: number;
  rank: number;
  worldSize: number;
  padToMultipleOf: number;
}

/**
 * Samples of text and chats that are read from files during training; open() creates it. An
 * iteration serves the rest of the current epoch, then the next one. Seed and epoch decide one
 * order of samples. Rank r takes every worldSize-th sample, so a position holds at any world size.
 * Each rank tokenizes all rows. At the end of an epoch, samples that do not fill a batch of every
 * rank are left out. The caller owns the tensors of a batch.
 */
export class TextStream {
  private position: Position = { epoch: 0, window: 0, part: 0, row: 0, skip: 0 };
  private readonly counts: TextReport = noReport();

  private constructor(
    private readonly settings: StreamSettings,
    private readonly parts: readonly FilePart[],
  ) {}

  /**
   * Finds the files and does not read them. Throws DS_ARGUMENT for wrong options, DS_DATA for
   * missing files.
   */
  static async open(given: TextStreamOptions): Promise<TextStream> {
    const op = 'TextStream.open';
    const options = readOptions(op, given, OPTIONS);
    const { batchSize = 1, shuffleBuffer = 1000, seed = 0, rank = 0, worldSize = 1 } = options;
    const { shuffle = true, padToMultipleOf = 1 } = options;
    requireType(`${op} shuffle`, shuffle, 'boolean');
    const settings: StreamSettings = {
      ...textSettings(op, options),
      shuffle,
      device: findDevice(options.device ?? 'cpu'),
      batchSize: requireInteger(`${op} batchSize`, batchSize, 1),
      shuffleBuffer: requireInteger(`${op} shuffleBuffer`, shuffleBuffer, 1),
      seed: requireInteger(`${op} seed`, seed, 0),
      worldSize: requireInteger(`${op} worldSize`, worldSize, 1),
      rank: requireInteger(`${op} rank`, rank, 0),
      padToMultipleOf: requireInteger(`${op} padToMultipleOf`, padToMultipleOf, 1),
    };
    if (rank >= worldSize) {
      const expected = `a rank below the world size ${worldSize}`;
      throw argumentError(`${op} rank`, expected, String(rank));
    }
    const withDigest = settings.pool.cache !== null;
    return new TextStream(settings, await partsOf(settings.files, withDigest));
  }

  /** The current epoch, from 0. */
  get epoch(): number {
    return this.position.epoch;
  }

  /** Counts of all rows that this object has read, repeated ones included. */
  get report(): Readonly<TextReport> {
    return this.counts;
  }

  /**
   * Goes to the start of an epoch, unless it is the current one. Throws DS_ARGUMENT unless the
   * epoch is a whole number from 0.
   */
  setEpoch(epoch: number): void {
    requireInteger('TextStream.setEpoch', epoch, 0);
    if (epoch !== this.epoch) this.position = { epoch, window: 0, part: 0, row: 0, skip: 0 };
  }

  /** Throws DS_DATA with file and line, and if an epoch does not fill one batch. */
  async *[Symbol.asyncIterator](): AsyncGenerator<TextBatch> {
    const pool = new EncodePool(this.settings.pool);
    try {
      let isOver = false;
      while (!isOver) isOver = yield* this.batchesTo(pool);
    } finally {
      await pool.close();
    }
  }

  /** Returns true at the end of the epoch, and false if loadStateDict() changed the position. */
  private async *batchesTo(pool: EncodePool): AsyncGenerator<TextBatch, boolean> {
    const started = this.position;
    const { batchSize, device, pad, rank, worldSize, padToMultipleOf } = this.settings;
    const collate = collateSamples(pad, padToMultipleOf);
    let served = 0;
    for await (const samples of this.rounds(pool, started)) {
      served++;
      const ownSamples = samples.filter((_, i) => i % worldSize === rank);
      const { position } = this;
      yield collate(ownSamples, device);
      if (this.position !== position) return false;
    }
    if (served === 0 && started.part === 0 && started.row === 0 && started.skip === 0) {
      const got = 'fewer, or none with a token to learn';
      const hint = 'Give more rows, a smaller batch, or fewer ranks.';
      const expected = `${batchSize * worldSize} samples: a batch for each rank`;
      throw dataError('TextStream', expected, got, hint);
    }
    this.setEpoch(started.epoch + 1);
    return true;
  }

  /**
   * Yields the samples of one batch of every rank. `position` is then after the last yielded batch.
   */
  private async *rounds(pool: EncodePool, from: Position): AsyncGenerator<TextSample[]> {
    const size = this.settings.batchSize * this.settings.worldSize;
    const { epoch } = from;
    let queue: { start: BufferStart; skip: number; sample: TextSample }[] = [];
    let { skip: left } = from;
    for await (const { start, next, samples } of this.windows(pool, from)) {
      const starts = samples.map((sample, skip) => ({ start, skip, sample }));
      queue = queue.concat(starts.slice(left));
      left = 0;
      while (queue.length >= size) {
        const round = queue.splice(0, size);
        const [first] = queue;
        this.position = first
          ? { epoch, ...first.start, skip: first.skip }
          : { epoch, ...next, skip: 0 };
        yield round.map(({ sample }) => sample);
      }
    }
  }

  /** The buffers of an epoch from a position on, each with its samples in their order. */
  private async *windows(pool: EncodePool, from: Position): AsyncGenerator<Window> {
    const { shuffleBuffer, seed, shuffle } = this.settings;
    const { epoch } = from;
    const order = shuffle ? shuffledOrder(this.parts.length, seed, epoch) : this.parts.keys();
    const left = Array.from(order, (i) => required(this.parts[i])).slice(from.part);
    let start: BufferStart = { window: from.window, part: from.part, row: from.row };
    let { part, row } = start;
    let held: TokenRun[] = [];
    for await (const encoded of pool.encode(left)) {
      const knew = this.counts.unended > 0;
      addCounts(this.counts, encoded.counts);
      if (!knew && this.settings.rank === 0) warnOfUnended(this.settings.files, this.counts);
      for (const run of rowsIn(encoded).slice(row)) {
        held.push(run);
        row++;
        if (held.length < shuffleBuffer) continue;
        const next = { window: start.window + 1, part, row };
        yield { start, next, samples: this.samplesOf(held, epoch, start.window) };
        [start, held] = [next, []];
      }
      [part, row] = [part + 1, 0];
    }
    const next = { window: start.window + 1, part, row };
    if (held.length > 0) yield { start, next, samples: this.samplesOf(held, epoch, start.window) };
  }

  private samplesOf(rows: readonly TokenRun[], epoch: number, window: number): TextSample[] {
    const { length, overlong, packing, pad, seed, shuffle } = this.settings;
    // These random streams differ from the streams that order the files.
    const stream = (epoch + 1) * 2 ** 32 + window;
    const mix = <T>(list: readonly T[]): T[] =>
      Array.from(shuffledOrder(list.length, seed, stream), (i) => defined(list[i]));
    const run = joinRows(rows);
    const lengths = rows.map(({ ids }) => ids.length);
    const samples = packRows(run, lengths, { length, overlong, packing }, this.counts);
    return (shuffle ? mix(samples) : samples).map((inside) => {
      const whole = packing ? length : (inside[0]?.length ?? 0);
      return sampleOf(run, inside, whole, pad);
    });
  }

  /** Returns the position, for checkpoints; the same on every rank. */
  stateDict(): JsonObject {
    return { ...this.position, ...this.kind() };
  }

  /**
   * Continues at the position of `state`. A running iteration continues there with its next batch.
   * Throws DS_CHECKPOINT if the state belongs to other files or another order.
   */
  loadStateDict(state: JsonObject): void {
    for (const [name, ownValue] of Object.entries(this.kind())) {
      if (state[name] === ownValue) continue;
      const hint = 'Resume with the same files and options, or without the state.';
      const got = `one with ${name} ${JSON.stringify(state[name])}`;
      const expected = `a position with ${name} ${ownValue}`;
      throw new DsError({
        code: 'DS_CHECKPOINT',
        op: 'TextStream.loadStateDict',
        expected,
        got,
        hint,
      });
    }
    const { epoch, window, part, row, skip } = state as unknown as Position;
    for (const [name, value] of Object.entries({ epoch, window, part, row, skip })) {
      requireInteger(`TextStream.loadStateDict ${name}`, value, 0);
    }
    this.position = { epoch, window, part, row, skip };
  }

  /** The options that decide the samples and their order. */
  private kind(): JsonObject {
    const { shuffleBuffer, length, overlong, packing, seed, shuffle } = this.settings;
    const bytes = this.parts.reduce((sum, { start, end }) => sum + end - start, 0);
    const content = { parts: this.parts.length, bytes };
    return { ...content, shuffleBuffer, length, overlong, packing, seed, shuffle };
  }
}

function rowsIn({ ids, labels, lengths }: EncodedPart): TokenRun[] {
  let at = 0;
  return Array.from(lengths, (length) => {
    at += length;
    return { ids: ids.subarray(at - length, at), labels: labels.subarray(at - length, at) };
  });
}

function joinRows(rows: readonly TokenRun[]): TokenRun {
  const total = rows.reduce((sum, { ids }) => sum + ids.length, 0);
  const run = { ids: new Int32Array(total), labels: new Int32Array(total) };
  let at = 0;
  for (const { ids, labels } of rows) {
    run.ids.set(ids, at);
    run.labels.set(labels, at);
    at += ids.length;
  }
  return run;
}
