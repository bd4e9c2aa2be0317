// A growable device table of rows. Sampler slots take rows and give them back.

import { Buffer } from '../runtime/buffer.js';
import { type DType, dtypeSize, type NumericArray } from '../runtime/dtype.js';
import { required } from '../runtime/required.js';
import type { View } from '../runtime/view.js';
import type { Uploads } from './uploads.js';

/**
 * Rows [rows, width] of one dtype. The first take() allocates memory; it doubles when all are in
 * use.
 */
export class RowTable {
  private buffer: Buffer | null = null;
  private rows = 0;
  private readonly free: number[] = [];

  constructor(
    private readonly uploads: Uploads,
    private readonly dtype: DType,
    private readonly width: number,
  ) {}

  /** Takes a free row and writes `values` to it. The table grows if no row is free. */
  take(values: NumericArray): number {
    if (this.free.length === 0) this.grow();
    const row = required(this.free.pop());
    if (this.buffer) this.uploads.write(this.buffer, row * this.rowBytes, values);
    return row;
  }

  /** Frees a row; ignores -1. */
  release(row: number): void {
    if (row >= 0) this.free.push(row);
  }

  /** View of all rows; null before the first take(). */
  get view(): View | null {
    const { buffer, dtype, rows, width } = this;
    return buffer && { buffer, dtype, shape: [rows, width], offset: 0, strides: [width, 1] };
  }

  dispose(): void {
    this.buffer?.release();
    this.buffer = null;
    this.rows = 0;
    this.free.length = 0;
  }

  private get rowBytes(): number {
    return this.width * dtypeSize(this.dtype);
  }

  private grow(): void {
    const rows = Math.max(1, 2 * this.rows);
    const { device } = this.uploads;
    const grown = Buffer.allocate(device, rows * this.rowBytes);
    const bytes = this.rows * this.rowBytes;
    if (this.buffer) grown.copyFrom(this.buffer, { bytes }, device.compute);
    this.buffer?.release();
    this.buffer = grown;
    for (let row = rows - 1; row >= this.rows; --row) this.free.push(row);
    this.rows = rows;
  }
}
