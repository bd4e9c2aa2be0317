// Device table of masks of allowed tokens, with one row per lane of a sequence with a format.
import { Buffer } from '../runtime/buffer.js';
import type { Device } from '../runtime/device.js';
import { fillMasks, type MaskRow } from '../runtime/grammar.js';
import { required } from '../runtime/required.js';
import { Event, Stream } from '../runtime/stream.js';
import type { View } from '../runtime/view.js';

/** Rows [rows, ceil(vocabSize / 32)] of i32 words. The first take() allocates memory. */
export class MaskTable {
  private buffer: Buffer | null = null;
  /** Pinned memory that threads fill; null on the CPU, where they fill `buffer`. */
  private staging: Buffer | null = null;
  /** Uploads masks while the compute stream runs a forward; null on the CPU. */
  private side: { readonly stream: Stream; readonly event: Event } | null = null;
  private readonly free: number[];
  private readonly words: number;

  constructor(
    private readonly device: Device,
    private readonly rows: number,
    vocabSize: number,
  ) {
    this.words = Math.ceil(vocabSize / 32);
    this.free = Array.from({ length: rows }, (_, i) => rows - 1 - i);
  }

  /** Takes the lowest free row. The first call allocates the table. */
  take(): number {
    if (!this.buffer) {
      const bytes = this.rows * this.words * 4;
      this.buffer = Buffer.allocate(this.device, bytes);
      if (this.device.kind !== 'cpu') this.open(bytes);
    }
    return required(this.free.pop());
  }

  private open(bytes: number): void {
    const { device } = this;
    this.staging = Buffer.allocatePinned(device, bytes);
    const event = new Event(device);
    const stream = Stream.create(device, 'masks', 'awaited');
    // Earlier operations of the compute stream may still use the memory that the pool reuses here.
    stream.wait(event.record(device.compute));
    this.side = { stream, event };
  }

  /** Frees a row; ignores -1. */
  release(row: number): void {
    if (row < 0) return;
    this.free.push(row);
    this.free.sort((a, b) => b - a);
  }

  /**
   * Fills rows on native threads; upload() must follow. The last upload must be complete: the host
   * has the tokens that were sampled after it. Rejects with DS_LIMIT.
   */
  async fill(rows: readonly MaskRow[]): Promise<void> {
    const target = this.staging ?? this.buffer;
    if (target && rows.length > 0) await fillMasks(rows, target);
  }

  /**
   * Enqueues one copy of the first `count` rows to the device on a side stream; the compute stream
   * waits for it. No kernel reads the rows, because the host has the tokens of the last sampling.
   */
  upload(count: number): void {
    const { buffer, staging, side } = this;
    if (!buffer || !staging || !side || count === 0) return;
    buffer.copyFrom(staging, { bytes: count * this.words * 4 }, side.stream);
    this.device.compute.wait(side.event.record(side.stream));
  }

  /** View of all rows; null before the first take(). */
  get view(): View | null {
    const { buffer, rows, words } = this;
    return buffer && { buffer, dtype: 'i32', shape: [rows, words], offset: 0, strides: [words, 1] };
  }

  dispose(): void {
    this.buffer?.release();
    this.staging?.release();
    this.side?.event.dispose();
    this.side?.stream.dispose();
    this.buffer = null;
    this.staging = null;
    this.side = null;
  }
}
