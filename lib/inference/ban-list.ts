// Sequences of tokens that may not be sampled, of all slots in one list on the device.
import { Buffer } from '../runtime/buffer.js';
import type { View } from '../runtime/view.js';
import type { Uploads } from './uploads.js';

/** Holds for good. */
export const FOREVER = 2 ** 31 - 1;

/** One banned sequence: its last token may not follow the others. */
export interface Ban {
  readonly tokens: readonly number[];
  /** Sampled tokens up to which it holds. */
  readonly until: number;
}

/** Slot, until and length come before a ban's tokens: csrc/ops/sample.h. */
const HEAD = 3;

/** Bans of slots; the list goes to the device again when one of them changes. */
export class BanList {
  private readonly bySlot = new Map<number, readonly Ban[]>();
  private buffer: Buffer | null = null;
  private uploaded: View | null = null;

  constructor(private readonly uploads: Uploads) {}

  /** Replaces the bans of a slot. */
  set(slot: number, bans: readonly Ban[]): void {
    if (bans.length === 0 && !this.bySlot.has(slot)) return;
    if (bans.length > 0) this.bySlot.set(slot, bans);
    else this.bySlot.delete(slot);
    this.upload();
  }

  /** [B, 3 + longest] i32; null where there is none. */
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
    const width = HEAD + all.reduce((most, { tokens }) => Math.max(most, tokens.length), 0);
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
