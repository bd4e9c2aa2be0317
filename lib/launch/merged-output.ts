// The output of all ranks as one: a line that every rank prints appears once, another carries its
// ranks.

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

export interface MergeOptions {
  worldSize: number;
  /** Milliseconds that a line waits for the same line of other ranks. Default 200. */
  window?: number;
  /** Milliseconds since any moment. Default: the process's clock. */
  now?: () => number;
}

/**
 * Lines leave in the order in which they first came, so those of one rank keep theirs. A line waits
 * until every rank has printed it, or for `window`; then it leaves as "[0-2,5] text", or without
 * ranks when all printed it.
 */
export class MergedOutput implements LineSink {
  private readonly pending: Pending[] = [];
  /** The same text of the same stream, in order of arrival. */
  private readonly alike = new Map<string, Pending[]>();
  /** By rank: the place of its last line. */
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
    const group = this.alike.get(key) ?? [];
    let entry = group.find((one) => one.order > after && !one.ranks.has(rank));
    if (!entry) {
      const expires = this.now() + this.window;
      entry = { stream, text, ranks: new Set(), order: this.count++, expires };
      this.pending.push(entry);
      this.alike.set(key, [...group, entry]);
    }
    entry.ranks.add(rank);
    this.last.set(rank, entry.order);
    this.flush();
  }

  end(): void {
    if (this.timer) clearTimeout(this.timer);
    this.timer = null;
    for (const entry of this.pending.splice(0)) this.print(entry);
  }

  /** Prints what has waited long enough; returns when nothing more can leave now. */
  flush(): void {
    const { worldSize } = this.options;
    const now = this.now();
    let leaving = 0;
    for (const entry of this.pending) {
      if (entry.ranks.size < worldSize && entry.expires > now) break;
      leaving++;
    }
    for (const entry of this.pending.splice(0, leaving)) this.print(entry);
    const first = this.pending[0];
    if (!first || this.timer) return;
    this.timer = setTimeout(
      () => {
        this.timer = null;
        this.flush();
      },
      Math.max(1, first.expires - now),
    );
  }

  private print(entry: Pending): void {
    const key = `${entry.stream} ${entry.text}`;
    const rest = (this.alike.get(key) ?? []).filter((one) => one !== entry);
    if (rest.length > 0) this.alike.set(key, rest);
    else this.alike.delete(key);
    const all = entry.ranks.size === this.options.worldSize;
    const label = all ? '' : `[${formatRanges([...entry.ranks])}] `;
    this.write(entry.stream, label + entry.text);
  }
}
