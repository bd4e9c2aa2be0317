// CompressedLayout: the parts and messages of a compressed vector, by arithmetic only.
import { DsError } from '../errors.js';

/** Consecutive elements of a vector with their own two levels. */
export interface Segment {
  /** Index of the first element. */
  start: number;
  /** Number of elements. */
  numel: number;
}

/** The segments of a rank's part, by element from its start, in the form for the sign ops. */
export interface PartSegments {
  /** [segments + 1], from 0 to the elements of the part. */
  readonly starts: readonly number[];
  /** [segments]; elements after a segment's count belong to no segment. */
  readonly counts: readonly number[];
}

/** Two f32 per segment. */
const LEVEL_BYTES = 8;

/**
 * Each rank averages one of `ranks` equal parts. A message contains the levels (as many as the part
 * with the most segments has), then the bits.
 */
export class CompressedLayout {
  /** Elements per part. */
  readonly part: number;
  /** By rank. */
  readonly parts: readonly PartSegments[];
  /** Bytes of the levels in a message. The bits follow. */
  readonly levelBytes: number;
  /** Bytes per message. */
  readonly messageBytes: number;

  /**
   * `segments`: in order, without overlaps. Throws DS_SHAPE unless a part is a multiple of 64
   * elements.
   */
  constructor(
    /** Elements of the vector. */
    readonly numel: number,
    /** Ranks of the exchange. */
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
   * Bytes that a rank sends per exchange: its message to each owner of another part, and the
   * average of its own part to each of them.
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
