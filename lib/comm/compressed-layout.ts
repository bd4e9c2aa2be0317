// A vector of which ranks exchange one bit per element: who averages which part of it, and what its
// messages hold. Arithmetic alone.
import { DsError } from '../errors.js';

/** Consecutive elements of a vector that have two levels of their own. */
export interface Segment {
  /** Its first element. */
  start: number;
  /** How many it has. */
  numel: number;
}

/**
 * The segments of a rank's part, by element from its start, as the ops of sign packing take them.
 */
export interface PartSegments {
  /** [segments + 1], from 0 to the elements of the part. */
  readonly starts: readonly number[];
  /** [segments]; what lies behind them belongs to none. */
  readonly counts: readonly number[];
}

/** Two f32 for each segment. */
const LEVEL_BYTES = 8;

/**
 * Each rank averages one of `ranks` equal parts. A message is a part's levels, as many as the part
 * with most segments has, and then its bits.
 */
export class CompressedLayout {
  /** Elements of a part. */
  readonly part: number;
  /** By rank. */
  readonly parts: readonly PartSegments[];
  /** Bytes of the levels in a message, the bits behind them. */
  readonly levelBytes: number;
  /** Bytes of a message. */
  readonly messageBytes: number;

  /**
   * `segments` are in order and apart. Throws DS_SHAPE unless the parts are whole multiples of 64
   * elements.
   */
  constructor(
    /** Elements of the vector. */
    readonly numel: number,
    /** Ranks that exchange it. */
    readonly ranks: number,
    segments: readonly Segment[],
  ) {
    this.part = numel / ranks;
    if (this.part % 64 !== 0) {
      const expected = `a multiple of ${64 * ranks} elements over ${ranks} ranks`;
      throw new DsError({ code: 'DS_SHAPE', op: 'CompressedLayout', expected, got: `${numel}` });
    }
    this.parts = partsOf(this.part, ranks, segments);
    this.levelBytes = LEVEL_BYTES * Math.max(...this.parts.map(({ counts }) => counts.length));
    this.messageBytes = this.levelBytes + this.part / 8;
  }

  /**
   * Bytes that a rank sends in one exchange: its message to each other rank as the owner of a part,
   * and the average of its own part to each of them.
   */
  get bytesSent(): number {
    return 2 * (this.ranks - 1) * this.messageBytes;
  }
}

function partsOf(size: number, ranks: number, segments: readonly Segment[]): PartSegments[] {
  const parts = Array.from({ length: ranks }, () => ({
    starts: [] as number[],
    counts: [] as number[],
  }));
  for (const { start, numel } of segments) {
    for (let from = start; from < start + numel; ) {
      const index = Math.floor(from / size);
      const part = parts[index] as (typeof parts)[number];
      const end = Math.min(start + numel, (index + 1) * size);
      part.starts.push(from - index * size);
      part.counts.push(end - from);
      from = end;
    }
  }
  for (const { starts, counts } of parts) {
    if (starts[0] !== 0) {
      starts.unshift(0);
      counts.unshift(0);
    }
    starts.push(size);
  }
  return parts;
}
