// A trie over UTF-16 units in flat arrays, because vocabularies have millions of nodes.
import { required } from '../../runtime/required.js';

/** Finds the keys that start at a position of a text. */
export class Trie {
  /** The children of a node are the nodes [first[node], first[node + 1]), ordered by unit. */
  private readonly first: number[] = [];
  private readonly units: number[] = [];
  /** Value of the key that ends at a node, or -1. */
  private readonly values: number[] = [];

  /** Builds the trie. Values must be at least 0. An empty key is never found. */
  constructor(keys: ReadonlyMap<string, number>) {
    const sorted = [...keys.keys()].sort();
    // Builds level by level: a node stands for the keys [from, to) with a common prefix.
    let level = [{ from: 0, to: sorted.length }];
    this.units.push(0);
    this.values.push(-1);
    for (let depth = 0; level.length > 0; ++depth) {
      const below: { from: number; to: number }[] = [];
      for (const { from, to } of level) {
        this.first.push(this.units.length);
        let start = from;
        if (start < to && required(sorted[start]).length === depth) start++;
        while (start < to) {
          const key = required(sorted[start]);
          const unit = key.charCodeAt(depth);
          let end = start + 1;
          while (end < to && required(sorted[end]).charCodeAt(depth) === unit) end++;
          // The shortest key comes first.
          this.units.push(unit);
          this.values.push(key.length === depth + 1 ? required(keys.get(key)) : -1);
          below.push({ from: start, to: end });
          start = end;
        }
      }
      level = below;
    }
    this.first.push(this.units.length);
  }

  /**
   * Calls `found` for each key that starts at `start`, the shortest first. `end`: the index after
   * the key.
   */
  prefixes(text: string, start: number, found: (end: number, value: number) => void): void {
    let node = 0;
    for (let at = start; at < text.length; ++at) {
      node = this.child(node, text.charCodeAt(at));
      if (node < 0) return;
      const value = required(this.values[node]);
      if (value >= 0) found(at + 1, value);
    }
  }

  private child(node: number, unit: number): number {
    let low = required(this.first[node]);
    let high = required(this.first[node + 1]);
    while (low < high) {
      const middle = (low + high) >> 1;
      const middleUnit = required(this.units[middle]);
      if (middleUnit === unit) return middle;
      if (middleUnit < unit) low = middle + 1;
      else high = middle;
    }
    return -1;
  }
}
