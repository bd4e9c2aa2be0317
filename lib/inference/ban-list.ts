// Banned token sequences of all sampler slots, uploaded to the device as one list.
import { Buffer } from '../runtime/buffer.js';
import type { View } from '../runtime/view.js';
import type { Uploads } from './uploads.js';

/** Value of `until` for a ban without an end: the largest i32. */
export const FOREVER = 2 ** 31 - 1;

/** A banned sequence: its last token may not follow the others. */
export interface Ban {
  readonly tokens: readonly number[];
  /** The ban ends after this number of sampled tokens. */
  readonly until: number;
}

/** Each row starts with slot, until and length; the tokens follow (csrc/ops/sample.h). */
const HEADER_WORDS = 3;

/** Holds the bans of each slot and uploads the list again if one changes. */
export class BanList {
  private readonly bySlot = new Map<number, readonly Ban[]>();
  private buffer: Buffer | null = null;
  private uploaded: View | null = null;

  constructor(private readonly uploads: Uploads) {}

  set(slot: number, bans: readonly Ban[]): void {
    if (bans.length === 0 && !this.bySlot.has(slot)) return;
    if (bans.length > 0) this.bySlot.set(slot, bans);
    else this.bySlot.delete(slot);
    this.upload();
  }

  /** The uploaded list, [bans, 3 + longest ban] i32; null without bans. */
  get view(): View | null {
    return this.uploaded;
  }

  dispose(): void {
    this.buffer?.release();
    this.buffer = null;
    this.uploaded = null;
    this.bySlot.clear();
  }

  private upload(): void {
    const all = [...this.bySlot].flatMap(([slot, bans]) => bans.map((ban) => ({ slot, ...ban })));
    if (all.length === 0) {
      this.uploaded = null;
      return;
    }
    const width = HEADER_WORDS + all.reduce((max, { tokens }) => Math.max(max, tokens.length), 0);
    const values = new Int32Array(all.length * width);
    all.forEach(({ slot, until, tokens }, i) => {
      values.set([slot, until, tokens.length, ...tokens], i * width);
    });
    if (!this.buffer || this.buffer.bytes < values.byteLength) {
      const grown = Buffer.allocate(this.uploads.device, 2 * values.byteLength);
      this.buffer?.release();
      this.buffer = grown;
    }
    this.uploads.write(this.buffer, 0, values);
    const shape = [all.length, width];
    this.uploaded = { buffer: this.buffer, dtype: 'i32', shape, offset: 0, strides: [width, 1] };
  }
}
