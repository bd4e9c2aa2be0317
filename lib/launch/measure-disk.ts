// Measures a disk with the file format, requests and checksums of training.

import { Buffer } from '../runtime/buffer.js';
import { cpu } from '../runtime/device.js';
import type { HostRange } from '../runtime/file.js';
import { required } from '../runtime/required.js';
import { SwapFile, type SwapFileInfo } from '../runtime/swap-file.js';

/** Keys of the `aio` section that affect the rates. */
export interface AioSetting {
  /** A multiple of SWAP_ALIGNMENT. */
  block_size: number;
  queue_depth: number;
  intra_op_parallelism: number;
}

/** Rates in bytes per second. */
interface Rates {
  read: number;
  write: number;
  /** Simultaneous reads and writes: the rate of each direction. */
  mixed: number;
}

export interface MeasuredSetting {
  setting: AioSetting;
  rates: Rates;
  info: SwapFileInfo;
}

const SLOTS = 4;
/** Minimum number of blocks in the file: each slot holds one block and uses two positions. */
export const MIN_BLOCKS = 2 * SLOTS;
/** Bytes of a slot: a tile of several million parameters. */
const SLOT_BYTES = 2 ** 26;

/**
 * Measures with a temporary file of about `bytes` bytes in `folder`. Throws DS_IO if the disk has
 * too little space or fails.
 */
export function measureDisk(folder: string, bytes: number, setting: AioSetting): MeasuredSetting {
  const { block_size: unit } = setting;
  const slot = Math.max(unit, Math.floor(Math.min(SLOT_BYTES, bytes / (2 * SLOTS)) / unit) * unit);
  const buffers = Array.from({ length: SLOTS }, () => Buffer.allocatePinned(cpu(), slot));
  const memory = buffers.map((buffer) => ({ buffer, offset: 0, bytes: slot }));
  const tiles = Math.max(2 * SLOTS, Math.floor(bytes / slot));
  const file = SwapFile.open({
    folder,
    label: 'measured',
    purpose: `${tiles * slot} bytes to measure with`,
    bytes: tiles * slot,
    memory,
    blockBytes: setting.block_size,
    depth: setting.queue_depth,
    checkers: setting.intra_op_parallelism,
  });
  try {
    fillWithNoise(buffers);
    return { setting, rates: measureRates(file, memory, tiles), info: file.info };
  } finally {
    file.dispose();
    for (const buffer of buffers) buffer.release();
  }
}

/** Fills the buffers with noise: zeros would make compressing disks look faster. */
function fillWithNoise(buffers: readonly Buffer[]): void {
  for (const buffer of buffers) {
    const words = new Uint32Array(buffer.bytes / 4);
    let state = 2463534242;
    for (let i = 0; i < words.length; ++i) {
      state ^= state << 13;
      state ^= state >>> 17;
      state ^= state << 5;
      words[i] = state;
    }
    buffer.write(0, words);
  }
}

type Transfer = (file: SwapFile, at: number, memory: HostRange) => void;

const { compute: computeStream } = cpu();
const write: Transfer = (file, at, memory) => file.write(at, memory, computeStream);
const read: Transfer = (file, at, memory) => file.read(at, memory, computeStream);

function measureRates(file: SwapFile, memory: readonly HostRange[], tiles: number): Rates {
  const { bytes } = required(memory[0]);
  const totalBytes = tiles * bytes;
  const timePass = (transferOf: (turn: number) => [Transfer, tile: number]): number => {
    const start = performance.now();
    for (let turn = 0; turn < tiles; ++turn) {
      const slot = required(memory[turn % memory.length]);
      file.wait(slot, computeStream);
      const [transfer, tile] = transferOf(turn);
      transfer(file, tile * bytes, slot);
    }
    for (const slot of memory) file.wait(slot, computeStream);
    return (performance.now() - start) / 1000;
  };
  // Write first: space that was never written may be faster to read and slower to write.
  timePass((turn) => [write, turn]);
  const [writing, reading] = [write, read].map((transfer) => timePass((turn) => [transfer, turn]));
  // Like an update: every tile that was read is written a little later.
  const half = Math.floor(tiles / 2);
  const mixed = timePass((turn) =>
    turn % 2 === 0 ? [read, turn >> 1] : [write, Math.min(tiles - 1, half + (turn >> 1))],
  );
  const seconds = { write: required(writing), read: required(reading), mixed };
  return toBytesPerSecond(totalBytes, seconds);
}

/**
 * Converts seconds to rates. Each pass moves `totalBytes` bytes; a mixed pass moves half in each
 * direction.
 */
export function toBytesPerSecond(totalBytes: number, { read, write, mixed }: Rates): Rates {
  return { read: totalBytes / read, write: totalBytes / write, mixed: totalBytes / 2 / mixed };
}
