// TextStream: batches of tokenized rows of files that need not fit memory. A seed determines the
// order, and checkpoints resume it.

import { isDeepStrictEqual } from 'node:util';
import type { JsonObject } from '../../types/json.js';
import { shuffledOrder } from '../data/order.js';
import { DsError } from '../errors.js';
import { type Device, device as findDevice } from '../runtime/device.js';
import { argumentError, dataError } from '../runtime/input-errors.js';
import { namesOf, readOptions } from '../runtime/options.js';
import { requireInteger } from '../runtime/require-number.js';
import { defined, required } from '../runtime/required.js';
import { EncodePool } from './encode-pool.js';
import type { EncodedPart } from './encoded-part.js';
import { addCounts, emptyReport, packRows, type TextReport, warnUnended } from './pack-rows.js';
import { divideFiles, type FilePart } from './row-files.js';
import {
  buildSample,
  collateSamples,
  type TextBatch,
  type TextSample,
  type TokenRun,
} from './sample.js';
import { readTextSettings, type TextOptions, type TextSettings } from './text-options.js';

/** Options of a TextStream. */
export interface TextStreamOptions extends TextOptions {
  /** Samples per batch of this rank. Default: 1. */
  batchSize?: number;
  /** Device of the batches. Default: "cpu". */
  device?: Device | string;
  /**
   * Reads parts of files in a new order in every epoch, and mixes rows within the buffer. Default
   * true.
   */
  shuffle?: boolean;
  /** Number of rows that are held, shuffled and packed together. Default: 1000. */
  shuffleBuffer?: number;
  /** Determines the order; must be equal on all ranks. Default: 0. */
  seed?: number;
  /** Index of this rank. Default: 0. */
  rank?: number;
  /** Ranks that share the samples. Default: 1. */
  worldSize?: number;
  /** Rounds the length of rows that are not packed up to a multiple of this. Default: 1. */
  padToMultipleOf?: number;
}

/** Start of a buffer: its index in the epoch, and the part and row of its first row. */
interface BufferStart {
  window: number;
  part: number;
  row: number;
}

/** Position of a stream. All ranks together have taken `skip` samples of the buffer. */
interface StreamPosition extends BufferStart {
  epoch: number;
  skip: number;
}

/** Samples of a buffer, and the start of the next one. */
interface SampleBuffer {
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
 * iteration yields the rest of the current epoch, then the next epoch. Seed and epoch determine one
 * order of samples. Rank r takes every worldSize-th sample, so a position is valid for any world
 * size. Each rank tokenizes all rows. At the end of an epoch, samples that do not fill a batch on
 * every rank are dropped. The caller owns the tensors of a batch.
 */
export class TextStream {
  private position: StreamPosition = { epoch: 0, window: 0, part: 0, row: 0, skip: 0 };
  private readonly counts: TextReport = emptyReport();

  private constructor(
    private readonly settings: StreamSettings,
    private readonly parts: readonly FilePart[],
  ) {}

  /**
   * Finds the files without reading them. Throws DS_ARGUMENT for invalid options, DS_DATA for
   * missing files.
   */
  static async open(given: TextStreamOptions): Promise<TextStream> {
    const op = 'TextStream.open';
    const options = readOptions(op, given, namesOf.TextStreamOptions);
    const { batchSize = 1, shuffleBuffer = 1000, seed = 0, rank = 0, worldSize = 1 } = options;
    const { shuffle = true, padToMultipleOf = 1 } = options;
    const settings: StreamSettings = {
      ...readTextSettings(op, options),
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
    const { files, columns } = settings;
    return new TextStream(settings, await divideFiles(files, withDigest, columns));
  }

  /** The current epoch, from 0. */
  get epoch(): number {
    return this.position.epoch;
  }

  /** Counts of all rows that this object has read, including repeated rows. */
  get report(): Readonly<TextReport> {
    return this.counts;
  }

  /**
   * Moves to the start of an epoch, unless it is the current one. Throws DS_ARGUMENT unless the
   * epoch is an integer from 0.
   */
  setEpoch(epoch: number): void {
    requireInteger('TextStream.setEpoch', epoch, 0);
    if (epoch !== this.epoch) this.position = { epoch, window: 0, part: 0, row: 0, skip: 0 };
  }

  /** Yields batches. Throws DS_DATA with file and line, and if an epoch does not fill one batch. */
  async *[Symbol.asyncIterator](): AsyncGenerator<TextBatch> {
    const pool = new EncodePool(this.settings.pool);
    try {
      let isOver = false;
      while (!isOver) isOver = yield* this.readBatches(pool);
    } finally {
      await pool.close();
    }
  }

  /** Returns true at the end of the epoch, and false if loadStateDict() changed the position. */
  private async *readBatches(pool: EncodePool): AsyncGenerator<TextBatch, boolean> {
    const started = this.position;
    const { batchSize, device, pad, rank, worldSize, padToMultipleOf } = this.settings;
    const collate = collateSamples(pad, padToMultipleOf);
    let served = 0;
    for await (const samples of this.readRounds(pool, started)) {
      served++;
      const rankSamples = samples.filter((_, i) => i % worldSize === rank);
      const { position } = this;
      yield collate(rankSamples, device);
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
   * Yields the samples of one batch of every rank. Afterwards, `position` is after the last yielded
   * batch.
   */
  private async *readRounds(pool: EncodePool, from: StreamPosition): AsyncGenerator<TextSample[]> {
    const size = this.settings.batchSize * this.settings.worldSize;
    const { epoch } = from;
    let queue: { start: BufferStart; skip: number; sample: TextSample }[] = [];
    let { skip: left } = from;
    for await (const { start, next, samples } of this.readBuffers(pool, from)) {
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

  /** Yields the buffers of an epoch from a position on, each with its samples in order. */
  private async *readBuffers(pool: EncodePool, from: StreamPosition): AsyncGenerator<SampleBuffer> {
    const { shuffleBuffer, seed, shuffle } = this.settings;
    const { epoch } = from;
    const order = shuffle ? shuffledOrder(this.parts.length, seed, epoch) : this.parts.keys();
    const left = Array.from(order, (i) => required(this.parts[i])).slice(from.part);
    let start: BufferStart = { window: from.window, part: from.part, row: from.row };
    let { part, row } = start;
    let bufferedRows: TokenRun[] = [];
    for await (const encoded of pool.encode(left)) {
      const knew = this.counts.unended > 0;
      addCounts(this.counts, encoded.counts);
      if (!knew && this.settings.rank === 0) warnUnended(this.settings.files, this.counts);
      for (const run of splitRows(encoded).slice(row)) {
        bufferedRows.push(run);
        row++;
        if (bufferedRows.length < shuffleBuffer) continue;
        const next = { window: start.window + 1, part, row };
        yield { start, next, samples: this.buildSamples(bufferedRows, epoch, start.window) };
        [start, bufferedRows] = [next, []];
      }
      [part, row] = [part + 1, 0];
    }
    const next = { window: start.window + 1, part, row };
    if (bufferedRows.length > 0)
      yield { start, next, samples: this.buildSamples(bufferedRows, epoch, start.window) };
  }

  private buildSamples(rows: readonly TokenRun[], epoch: number, window: number): TextSample[] {
    const { length, overlong, packing, pad, seed, shuffle } = this.settings;
    // These random streams differ from the streams that order the files.
    const stream = (epoch + 1) * 2 ** 32 + window;
    const mix = <T>(list: readonly T[]): T[] =>
      Array.from(shuffledOrder(list.length, seed, stream), (i) => defined(list[i]));
    const run = joinRows(rows);
    const lengths = rows.map(({ ids }) => ids.length);
    const samples = packRows(run, lengths, { length, overlong, packing }, this.counts);
    return (shuffle ? mix(samples) : samples).map((inside) => {
      const sampleLength = packing ? length : (inside[0]?.length ?? 0);
      return buildSample(run, inside, sampleLength, pad);
    });
  }

  /** Returns the position for checkpoints; equal on all ranks. */
  stateDict(): JsonObject {
    return { ...this.position, ...this.stateIdentity() };
  }

  /**
   * Continues at the position in `state`. A running iteration continues there with its next batch.
   * Throws DS_CHECKPOINT if the state belongs to other files or another order.
   */
  loadStateDict(state: JsonObject): void {
    for (const [name, ownValue] of Object.entries(this.stateIdentity())) {
      const saved = state[name] ?? null;
      if (isDeepStrictEqual(saved, ownValue)) continue;
      const hint = 'Resume with the same files and options, or without the state.';
      const got = `a position with ${name} ${JSON.stringify(saved)}`;
      const expected = `a position with ${name} ${JSON.stringify(ownValue)}`;
      throw new DsError({
        code: 'DS_CHECKPOINT',
        op: 'TextStream.loadStateDict',
        expected,
        got,
        hint,
      });
    }
    const { epoch, window, part, row, skip } = state as unknown as StreamPosition;
    for (const [name, value] of Object.entries({ epoch, window, part, row, skip })) {
      requireInteger(`TextStream.loadStateDict ${name}`, value, 0);
    }
    this.position = { epoch, window, part, row, skip };
  }

  /** Returns the options that determine the samples and their order. */
  private stateIdentity(): JsonObject {
    const { shuffleBuffer, length, overlong, packing, seed, shuffle } = this.settings;
    const { columns = null } = this.settings;
    const bytes = this.parts.reduce((sum, { start, end }) => sum + end - start, 0);
    const content = { parts: this.parts.length, bytes };
    return { ...content, columns, shuffleBuffer, length, overlong, packing, seed, shuffle };
  }
}

function splitRows({ ids, labels, lengths }: EncodedPart): TokenRun[] {
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
