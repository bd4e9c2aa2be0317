// CompressedLayout: sizes and positions of the chunks and messages of a compressed vector.

import { DsError } from '../errors.js';
import { required } from '../runtime/required.js';

/** Consecutive elements of a vector with their own two levels. */
export interface Segment {
  /** Index of the first element. */
  start: number;
  /** Number of elements. */
  numel: number;
}

/** The segments of a rank's chunk, by element from its start, in the form for the sign ops. */
export interface ChunkSegments {
  /** First elements of the segments [segments + 1], from 0 to the elements of the chunk. */
  readonly starts: readonly number[];
  /** Elements of each segment [segments]; elements after a segment's count belong to no segment. */
  readonly counts: readonly number[];
}

/** Two f32 per segment. */
const LEVEL_BYTES = 8;

/**
 * The layout of the messages of a compressed exchange. Each rank averages one of `ranks` equal
 * chunks. A message contains the levels (as many as the chunk with the most segments has), then the
 * bits.
 */
export class CompressedLayout {
  /** Elements per chunk. */
  readonly chunk: number;
  /** Segments of each rank's chunk. */
  readonly chunks: readonly ChunkSegments[];
  /** Bytes of the levels in a message. The bits follow. */
  readonly levelBytes: number;
  /** Bytes per message. */
  readonly messageBytes: number;

  /**
   * `segments`: in order, without overlaps. Throws DS_SHAPE unless a chunk is a multiple of 64
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
   * Bytes that a rank sends per exchange: its message to each owner of another chunk, and the
   * average of its own chunk to each of them.
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
