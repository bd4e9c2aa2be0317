// Memory that lies on disk: a nameless file whose ranges come and go in the order of streams.
import type { SwapFileInfo } from '../../types/addon.js';
import { addon } from './addon.js';
import type { HostRange } from './file.js';
import { native } from './native.js';
import type { Stream } from './stream.js';

export type { SwapFileInfo };

/** Offsets, sizes and places in memory of transfers are multiples of it. */
export const SWAP_ALIGNMENT = 4096;

export interface SwapFileOptions {
  /** Where the file is, what errors call it, and what they say its space is for. */
  folder: string;
  label: string;
  purpose: string;
  bytes: number;
  /** Bytes of a request, and of what has a checksum; transfers start at multiples of it. */
  blockBytes: number;
  /** Requests under way at once. */
  depth: number;
  /** Threads that compute checksums. */
  checkers: number;
  /** Where transfers come from and go to. */
  memory: readonly HostRange[];
}

/**
 * A preallocated file that no other process can open, and whose space is free again when this one
 * ends, however it ends. A transfer starts when its stream gets there and those before it that
 * touch the same bytes are over; the stream goes on at once. Every block has a checksum, kept in
 * memory.
 */
export class SwapFile {
  private constructor(private readonly handle: number) {}

  /** Throws DS_IO: no such folder, no space. */
  static open(options: SwapFileOptions): SwapFile {
    const { folder, label, purpose, bytes, blockBytes, depth, checkers, memory } = options;
    const ranges = memory.flatMap((range) => [range.buffer.handle, range.offset, range.bytes]);
    const tuning = Float64Array.of(blockBytes, depth, checkers, ...ranges);
    return new SwapFile(native(() => addon.openSwapFile(folder, label, purpose, bytes, tuning)));
  }

  /** What was written at `offset` from memory of this size. */
  read(offset: number, into: HostRange, stream: Stream): void {
    this.start(false, offset, into, stream);
  }

  write(offset: number, from: HostRange, stream: Stream): void {
    this.start(true, offset, from, stream);
  }

  /**
   * Later work of `stream` finds no transfer of this memory under way. Throws DS_IO (a failed or
   * stalled disk, a block whose checksum is another) where streams run at once; elsewhere the next
   * call that looks does. No transfer starts after a failure, and every later wait fails as well.
   */
  wait({ buffer, offset, bytes }: HostRange, stream: Stream): void {
    native(() => addon.waitSwap(this.handle, buffer.handle, offset, bytes, stream.handle));
  }

  get info(): SwapFileInfo {
    return native(() => addon.swapFileInfo(this.handle));
  }

  /** Its space is free once transfers under way are over, for which this waits. */
  dispose(): void {
    native(() => addon.releaseSwapFile(this.handle));
  }

  private start(writes: boolean, at: number, range: HostRange, stream: Stream): void {
    const { buffer, offset, bytes } = range;
    native(() =>
      addon.startSwap(this.handle, writes, at, buffer.handle, offset, bytes, stream.handle),
    );
  }
}
