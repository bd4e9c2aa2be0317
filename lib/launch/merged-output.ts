// The output of all ranks as one: a line that every rank prints appears once, another carries its
// ranks.

import { required } from '../runtime/required.js';
import type { LineSink, StreamName, WriteLine } from './lines.js';
import { formatRanges } from './number-ranges.js';

interface Pending {
  stream: StreamName;
  text: string;
  ranks: Set<number>;
  /** Place in the order of arrival. */
  order: number;
  expires: number;
}

/** First come, first gone, in the same time however many there are. */
class Queue<Item> {
  private items: Item[] = [];
  private gone = 0;

  get head(): Item | undefined {
    return this.items[this.gone];
  }

  push(item: Item): void {
    this.items.push(item);
  }

  shift(): Item | undefined {
    const item = this.items[this.gone++];
    if (2 * this.gone > this.items.length) {
      this.items = this.items.slice(this.gone);
      this.gone = 0;
    }
    return item;
  }

  /** The first one that is so; all behind it must be so, too. */
  first(isSo: (item: Item) => boolean): Item | undefined {
    let [low, high] = [this.gone, this.items.length];
    while (low < high) {
      const middle = (low + high) >>> 1;
      if (isSo(this.items[middle] as Item)) high = middle;
      else low = middle + 1;
    }
    return this.items[low];
  }
}

export interface MergeOptions {
  worldSize: number;
  /** Milliseconds that a line waits for the same line of other ranks. Default 200. */
  window?: number;
  /** Milliseconds since any moment. Default: the process's clock. */
  now?: () => number;
}

/**
 * Prints lines in the order of their first arrival, so lines of one rank keep their order. A line
 * waits until every rank has printed it, or for `window`. It is then printed as "[0-2,5] text", or
 * without ranks if all ranks printed it.
 */
export class MergedOutput implements LineSink {
  private readonly pending = new Queue<Pending>();
  /** Pending lines by stream and text, in order of arrival. */
  private readonly alike = new Map<string, Queue<Pending>>();
  /** Position of the last line of each rank. */
  private readonly last = new Map<number, number>();
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
    const after = this.last.get(rank) ?? -1;
    const group = this.alike.get(key) ?? new Queue();
    // Earlier entries already contain a line of this rank.
    let entry = group.first(({ order }) => order > after);
    if (!entry) {
      const expires = this.now() + this.window;
      entry = { stream, text, ranks: new Set(), order: this.count++, expires };
      this.pending.push(entry);
      group.push(entry);
      this.alike.set(key, group);
    }
    entry.ranks.add(rank);
    this.last.set(rank, entry.order);
    this.flush();
  }

  end(): void {
    if (this.timer) clearTimeout(this.timer);
    this.timer = null;
    while (this.pending.head) this.printFirst();
  }

  /** Prints the lines that have waited long enough. Returns when the next line must wait. */
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
    const group = this.alike.get(key);
    group?.shift();
    if (!group?.head) this.alike.delete(key);
    const all = ranks.size === this.options.worldSize;
    const label = all ? '' : `[${formatRanges([...ranks])}] `;
    this.write(stream, label + text);
  }
}
