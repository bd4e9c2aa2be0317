// Measures a disk with the file, requests and checksums of training, without training.

import { Buffer } from '../runtime/buffer.js';
import { cpu } from '../runtime/device.js';
import type { HostRange } from '../runtime/file.js';
import { required } from '../runtime/required.js';
import { SwapFile, type SwapFileInfo } from '../runtime/swap-file.js';

/** The keys of the `aio` section that decide a rate. */
export interface AioSetting {
  /** A multiple of SWAP_ALIGNMENT. */
  block_size: number;
  queue_depth: number;
  intra_op_parallelism: number;
}

/** Bytes per second. */
export interface Rates {
  read: number;
  write: number;
  /** Reads and writes at once: bytes of one direction. The other direction moves as many. */
  mixed: number;
}

export interface MeasuredSetting {
  setting: AioSetting;
  rates: Rates;
  info: SwapFileInfo;
}

const SLOTS = 4;
/** Blocks that the file has at least: each slot holds one, and is at two places. */
export const MIN_BLOCKS = 2 * SLOTS;
/** Of a slot: a tile of some million parameters. */
const SLOT_BYTES = 2 ** 26;

/** Measures with a file of `bytes` or a little less in `folder`, gone afterwards. Throws DS_IO. */
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
    return { setting, rates: ratesOf(file, memory, tiles), info: file.info };
  } finally {
    file.dispose();
    for (const buffer of buffers) buffer.release();
  }
}

/** Zeros would make disks with compression look faster. */
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

const { compute: order } = cpu();
const write: Transfer = (file, at, memory) => file.write(at, memory, order);
const read: Transfer = (file, at, memory) => file.read(at, memory, order);

function ratesOf(file: SwapFile, memory: readonly HostRange[], tiles: number): Rates {
  const { bytes } = required(memory[0]);
  const whole = tiles * bytes;
  const pass = (transferOf: (turn: number) => [Transfer, tile: number]): number => {
    const start = performance.now();
    for (let turn = 0; turn < tiles; ++turn) {
      const slot = required(memory[turn % memory.length]);
      file.wait(slot, order);
      const [transfer, tile] = transferOf(turn);
      transfer(file, tile * bytes, slot);
    }
    for (const slot of memory) file.wait(slot, order);
    return (performance.now() - start) / 1000;
  };
  // Space that was never written may be faster to read, and slower to write.
  pass((turn) => [write, turn]);
  const [writing, reading] = [write, read].map((transfer) => pass((turn) => [transfer, turn]));
  // As an update does: every tile that is read is written a little later.
  const half = Math.floor(tiles / 2);
  const mixed = pass((turn) =>
    turn % 2 === 0 ? [read, turn >> 1] : [write, Math.min(tiles - 1, half + (turn >> 1))],
  );
  const seconds = { write: required(writing), read: required(reading), mixed };
  return bytesPerSecond(whole, seconds);
}

/** Each pass moves `whole` bytes; a mixed one moves one half in each direction. */
export function bytesPerSecond(whole: number, { read, write, mixed }: Rates): Rates {
  return { read: whole / read, write: whole / write, mixed: whole / 2 / mixed };
}
