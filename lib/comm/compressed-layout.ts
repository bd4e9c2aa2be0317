// CompressedLayout: sizes and positions of the chunks and messages of a compressed vector.

import { DsError } from '../errors.js';
import { required } from '../runtime/required.js';

/** Consecutive elements of a vector with the same two levels. */
export interface Segment {
  /** Index of the first element. */
  start: number;
  /** Number of elements. */
  numel: number;
}

/**
 * The segments of one chunk, as the sign ops read them. Indices count from the start of the chunk.
 */
export interface ChunkSegments {
  /**
   * The first element of each segment, [segments + 1]. Starts with 0 and ends with the size of the
   * chunk.
   */
  readonly starts: readonly number[];
  /**
   * The number of elements of each segment, [segments]. Elements between its end and the next start
   * belong to no segment.
   */
  readonly counts: readonly number[];
}

/** Bytes of the two f32 levels of a segment. */
const LEVEL_BYTES = 8;

/**
 * The layout of the messages of a compressed exchange. The vector is divided into `ranks` equal
 * chunks, and each rank averages one. A message contains the levels of a chunk, then one bit per
 * element. All messages reserve the levels of the chunk with the most segments.
 */
export class CompressedLayout {
  /** Elements per chunk. */
  readonly chunk: number;
  /** By chunk: its segments. */
  readonly chunks: readonly ChunkSegments[];
  /** Bytes of the levels in a message. The bits follow them. */
  readonly levelBytes: number;
  /** Bytes per message. */
  readonly messageBytes: number;

  /**
   * `segments` are in order and do not overlap. Throws DS_SHAPE unless a chunk is a multiple of 64
   * elements.
   */
  constructor(
    /** Elements of the vector. */
    readonly numel: number,
    /** Ranks of the exchange. */
    readonly ranks: number,
    segments: readonly Segment[],
  ) {
    this.chunk = numel / ranks;
    if (this.chunk % 64 !== 0) {
      const expected = `a multiple of ${64 * ranks} elements over ${ranks} ranks`;
      throw new DsError({ code: 'DS_SHAPE', op: 'CompressedLayout', expected, got: `${numel}` });
    }
    this.chunks = chunksOf(this.chunk, ranks, segments);
    this.levelBytes = LEVEL_BYTES * Math.max(...this.chunks.map(({ counts }) => counts.length));
    this.messageBytes = this.levelBytes + this.chunk / 8;
  }

  /**
   * Bytes that a rank sends per exchange: its message to each other owner, and the average of its
   * own chunk to each of them.
   */
  get bytesSent(): number {
    return 2 * (this.ranks - 1) * this.messageBytes;
  }
}

function chunksOf(size: number, ranks: number, segments: readonly Segment[]): ChunkSegments[] {
  const chunks = Array.from({ length: ranks }, (): Record<'starts' | 'counts', number[]> => {
    return { starts: [], counts: [] };
  });
  for (const { start, numel } of segments) {
    for (let from = start; from < start + numel; ) {
      const index = Math.floor(from / size);
      const chunk = required(chunks[index]);
      const end = Math.min(start + numel, (index + 1) * size);
      chunk.starts.push(from - index * size);
      chunk.counts.push(end - from);
      from = end;
    }
  }
  for (const { starts, counts } of chunks) {
    if (starts[0] !== 0) {
      starts.unshift(0);
      counts.unshift(0);
    }
    starts.push(size);
  }
  return chunks;
}
