// Merges the output of all ranks: a line that every rank prints appears once; another line is
// prefixed with its ranks.

import { required } from '../runtime/required.js';
import type { LineSink, StreamName, WriteLine } from './lines.js';
import { formatRanges } from './number-ranges.js';

interface PendingLine {
  stream: StreamName;
  text: string;
  ranks: Set<number>;
  /** Position in the order of arrival. */
  order: number;
  expires: number;
}

/** A first-in, first-out queue with amortized constant time per operation. */
class Queue<Item> {
  private items: Item[] = [];
  private removed = 0;

  get head(): Item | undefined {
    return this.items[this.removed];
  }

  push(item: Item): void {
    this.items.push(item);
  }

  shift(): Item | undefined {
    const item = this.items[this.removed++];
    if (2 * this.removed > this.items.length) {
      this.items = this.items.slice(this.removed);
      this.removed = 0;
    }
    return item;
  }

  /** Returns the first item that passes `test`, by binary search: all later items must pass too. */
  findFirst(test: (item: Item) => boolean): Item | undefined {
    let [low, high] = [this.removed, this.items.length];
    while (low < high) {
      const middle = (low + high) >>> 1;
      if (test(this.items[middle] as Item)) high = middle;
      else low = middle + 1;
    }
    return this.items[low];
  }
}

interface MergeOptions {
  worldSize: number;
  /** Milliseconds that a line waits for the same line of other ranks. Default: 200. */
  window?: number;
  /** Returns the current time in milliseconds. Default: performance.now(). */
  now?: () => number;
}

/**
 * Prints lines in the order of their first arrival, so lines of one rank keep their order. A line
 * waits until every rank has printed it, or for `window`. It is then printed as "[0-2,5] text", or
 * without ranks if all ranks printed it.
 */
export class MergedOutput implements LineSink {
  private readonly pending = new Queue<PendingLine>();
  /** Pending lines by stream and text, in order of arrival. */
  private readonly pendingByText = new Map<string, Queue<PendingLine>>();
  /** Value of `order` of each rank's last line. */
  private readonly lastOrder = new Map<number, number>();
  private readonly now: () => number;
  private readonly window: number;
  private count = 0;
  private timer: NodeJS.Timeout | null = null;

  constructor(
    private readonly write: WriteLine,
    private readonly options: MergeOptions,
  ) {
    this.now = options.now ?? (() => performance.now());
    this.window = options.window ?? 200;
  }

  line(rank: number, stream: StreamName, text: string): void {
    const key = `${stream} ${text}`;
    const after = this.lastOrder.get(rank) ?? -1;
    const group = this.pendingByText.get(key) ?? new Queue();
    // Entries up to `after` may already contain a line of this rank.
    let entry = group.findFirst(({ order }) => order > after);
    if (!entry) {
      const expires = this.now() + this.window;
      entry = { stream, text, ranks: new Set(), order: this.count++, expires };
      this.pending.push(entry);
      group.push(entry);
      this.pendingByText.set(key, group);
    }
    entry.ranks.add(rank);
    this.lastOrder.set(rank, entry.order);
    this.flush();
  }

  end(): void {
    if (this.timer) clearTimeout(this.timer);
    this.timer = null;
    while (this.pending.head) this.printFirst();
  }

  /** Prints the lines that have waited long enough; sets a timer if the next line must wait. */
  flush(): void {
    const { worldSize } = this.options;
    const now = this.now();
    let first = this.pending.head;
    while (first && (first.ranks.size === worldSize || first.expires <= now)) {
      this.printFirst();
      first = this.pending.head;
    }
    if (!first || this.timer) return;
    this.timer = setTimeout(
      () => {
        this.timer = null;
        this.flush();
      },
      Math.max(1, first.expires - now),
    );
  }

  private printFirst(): void {
    const { stream, text, ranks } = required(this.pending.shift());
    const key = `${stream} ${text}`;
    const group = this.pendingByText.get(key);
    group?.shift();
    if (!group?.head) this.pendingByText.delete(key);
    const isFromAll = ranks.size === this.options.worldSize;
    const label = isFromAll ? '' : `[${formatRanges([...ranks])}] `;
    this.write(stream, label + text);
  }
}
