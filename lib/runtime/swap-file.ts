// Memory on disk: a file without a name, with transfers in stream order.
import type { SwapFileInfo } from '../../types/addon.js';
import { addon } from './addon.js';
import type { HostRange } from './file.js';
import { native } from './native.js';
import type { Stream } from './stream.js';

export type { SwapFileInfo };

/** Offsets, sizes and memory addresses of transfers are multiples of this number of bytes. */
export const SWAP_ALIGNMENT = 4096;

export interface SwapFileOptions {
  /** The folder of the file, its name in errors, and its purpose in errors. */
  folder: string;
  label: string;
  purpose: string;
  bytes: number;
  /** Bytes of a request and of a checksum's block; transfers start at multiples of it. */
  blockBytes: number;
  /** Maximum number of concurrent requests. */
  depth: number;
  /** Threads that compute checksums. */
  checkers: number;
  /** The memory of all transfers. */
  memory: readonly HostRange[];
}

/**
 * A preallocated file that no other process can open. The kernel frees its space when this process
 * ends, even if it is killed. A transfer starts when its stream reaches it and earlier transfers of
 * the same bytes are complete; the stream continues at once. Every block has a checksum, kept in
 * memory.
 */
export class SwapFile {
  private constructor(private readonly handle: number) {}

  /** Opens the file. Throws DS_IO if the folder does not exist or has too little space. */
  static open(options: SwapFileOptions): SwapFile {
    const { folder, label, purpose, bytes, blockBytes, depth, checkers, memory } = options;
    const ranges = memory.flatMap((range) => [range.buffer.handle, range.offset, range.bytes]);
    const tuning = Float64Array.of(blockBytes, depth, checkers, ...ranges);
    return new SwapFile(native(() => addon.openSwapFile(folder, label, purpose, bytes, tuning)));
  }

  /** Reads data that was written at `offset` from memory of the same size. */
  read(offset: number, into: HostRange, stream: Stream): void {
    this.start(false, offset, into, stream);
  }

  write(offset: number, from: HostRange, stream: Stream): void {
    this.start(true, offset, from, stream);
  }

  /**
   * Orders later work of `stream` after all transfers of this memory. A failed or stalled disk, or
   * a wrong checksum, throws DS_IO: here if streams run work at once, otherwise in the next call
   * that checks. No transfer starts after a failure, and every later wait fails too.
   */
  wait({ buffer, offset, bytes }: HostRange, stream: Stream): void {
    native(() => addon.waitSwap(this.handle, buffer.handle, offset, bytes, stream.handle));
  }

  get info(): SwapFileInfo {
    return native(() => addon.swapFileInfo(this.handle));
  }

  /** Waits for transfers in flight, then frees its space. */
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
