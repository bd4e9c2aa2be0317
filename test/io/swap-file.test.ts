// Memory on disk through the addon: contents, order of transfers, and failures of the disk.
import {
  closeSync,
  ftruncateSync,
  mkdtempSync,
  openSync,
  readdirSync,
  readlinkSync,
  rmSync,
  statfsSync,
  writeSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import type { DsError } from '../../lib/index.js';
import { Buffer as DeviceBuffer } from '../../lib/runtime/buffer.js';
import { cpu } from '../../lib/runtime/device.js';
import { fileEngineName, type HostRange, setFileEngine } from '../../lib/runtime/file.js';
import { SwapFile, type SwapFileOptions } from '../../lib/runtime/swap-file.js';
import { thrownBy } from '../support/refusal.js';

const PAGE = 4096;
const SLOT = 8 * PAGE;
const { compute } = cpu();

let folder: string;
let memory: DeviceBuffer;
const opened: SwapFile[] = [];
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'ds-swap-'));
  memory = DeviceBuffer.allocatePinned(cpu(), 4 * SLOT);
});
afterEach(() => {
  for (const file of opened.splice(0)) file.dispose();
  expect(readdirSync(folder)).toEqual([]);
});
afterAll(() => {
  memory.release();
  rmSync(folder, { recursive: true, force: true });
});

const slot = (index: number, bytes = SLOT): HostRange => ({
  buffer: memory,
  offset: index * SLOT,
  bytes,
});

function open(more: Partial<SwapFileOptions> = {}): SwapFile {
  const file = SwapFile.open({
    folder,
    label: 'state',
    purpose: 'a test',
    bytes: 16 * SLOT,
    blockBytes: 2 * PAGE,
    depth: 3,
    checkers: 2,
    memory: [slot(0), slot(1)],
    ...more,
  });
  opened.push(file);
  return file;
}

/** Bytes that differ from place to place and from `salt` to `salt`. */
const pattern = (salt: number, bytes = SLOT): Uint8Array =>
  Uint8Array.from({ length: bytes }, (_, i) => Math.imul(i + 1, 2654435761 + 97 * salt) >>> 24);

function fill(index: number, salt: number): void {
  memory.write(index * SLOT, pattern(salt));
}

function contents(index: number, bytes = SLOT): Uint8Array {
  const out = new Uint8Array(bytes);
  memory.read(index * SLOT, out);
  return out;
}

/** Opens the nameless file once more, as no program could that does not run in this process. */
function descriptorOf(): number {
  for (const entry of readdirSync('/proc/self/fd')) {
    const path = `/proc/self/fd/${entry}`;
    let target = '';
    try {
      target = readlinkSync(path);
    } catch {
      continue; // The descriptor of this very listing.
    }
    if (target.startsWith(folder)) return openSync(path, 'r+');
  }
  throw new Error('no file is open in the folder');
}

function damage(change: (descriptor: number) => void): void {
  const descriptor = descriptorOf();
  change(descriptor);
  closeSync(descriptor);
}

const engines = fileEngineName() === 'io_uring' ? ['io_uring', 'threads'] : ['threads'];

test('transfers beyond the end of the file are refused', () => {
  const file = open({ bytes: 2 * SLOT });
  const refused = { code: 'DS_BOUNDS', op: 'startSwap' };
  for (const at of [2 * SLOT, SLOT + 2 * PAGE, 2 ** 40, 2 ** 52]) {
    for (const move of ['read', 'write'] as const) {
      expect(thrownBy(() => file[move](at, slot(0), compute))).toMatchObject(refused);
    }
  }
  file.write(SLOT, slot(0), compute);
  file.wait(slot(0), compute);
  expect(file.info.bytesWritten).toBe(SLOT);
});

test('a transfer keeps its memory after the buffer is released', () => {
  const file = open();
  for (let i = 0; i < 50; ++i) {
    const localBytes = DeviceBuffer.allocatePinned(cpu(), SLOT);
    localBytes.write(0, pattern(i));
    file.write(0, { buffer: localBytes, offset: 0, bytes: SLOT }, compute);
    localBytes.release();
    // The allocator reuses free memory: the write would store these bytes.
    const next = DeviceBuffer.allocatePinned(cpu(), SLOT);
    next.write(0, new Uint8Array(SLOT));
    fill(1, 99);
    file.read(0, slot(1), compute);
    file.wait(slot(1), compute);
    expect(Buffer.compare(contents(1), pattern(i))).toBe(0);
    next.release();
  }
});

describe.each(engines)('over %s', (engine) => {
  beforeAll(() => setFileEngine(engine as 'io_uring' | 'threads'));
  afterAll(() => setFileEngine(engines[0] as 'io_uring' | 'threads'));

  test('reads back written bytes, from registered and other memory, and at the end of a block', () => {
    const file = open();
    const sizes = [SLOT, 3 * PAGE, SLOT, PAGE];
    sizes.forEach((bytes, index) => {
      fill(index, index);
      file.write(2 * index * SLOT, slot(index, bytes), compute);
    });
    sizes.forEach((bytes, index) => {
      file.wait(slot(index), compute);
      fill(index, 99);
      file.read(2 * index * SLOT, slot(index, bytes), compute);
    });
    sizes.forEach((bytes, index) => {
      file.wait(slot(index), compute);
      expect(contents(index, bytes)).toEqual(pattern(index, bytes));
      expect(contents(index).subarray(bytes)).toEqual(pattern(99).subarray(bytes));
    });
    const { bytesRead, bytesWritten, path, engine: used } = file.info;
    const moved = sizes.reduce((sum, bytes) => sum + bytes);
    expect([bytesRead, bytesWritten, used]).toEqual([moved, moved, engine]);
    expect(path).toBe(join(folder, 'state'));
  });

  test('transfers that touch the same bytes have the order of their submission, without a wait', () => {
    const file = open();
    fill(0, 1);
    for (let round = 0; round < 40; ++round) {
      const [at, next] = [round, round + 1].map((turn) => (turn % 16) * SLOT) as [number, number];
      file.write(at, slot(0), compute);
      file.read(at, slot(1), compute); // After the write of the same place.
      file.write(next, slot(1), compute); // After the read into the same memory.
      file.read(next, slot(2), compute);
      file.read(at, slot(3), compute);
    }
    for (const index of [0, 1, 2, 3]) {
      file.wait(slot(index), compute);
      expect(contents(index)).toEqual(pattern(1));
    }
  });

  test('a changed block gives an error with its number, and stops all transfers', () => {
    const file = open();
    fill(0, 5);
    file.write(4 * SLOT, slot(0), compute);
    file.wait(slot(0), compute);
    const place = 4 * SLOT + 2 * PAGE + 17;
    const flipped = (pattern(5)[2 * PAGE + 17] as number) ^ 4;
    damage((descriptor) => writeSync(descriptor, Uint8Array.of(flipped), 0, 1, place));
    file.read(4 * SLOT, slot(1), compute);
    const read = () => file.wait(slot(1), compute);
    expect(read).toThrow(
      expect.objectContaining({
        code: 'DS_IO',
        op: `read ${join(folder, 'state')}`,
        expected: expect.stringContaining(`${2 * PAGE} bytes at offset ${4 * SLOT + 2 * PAGE}`),
        hint: expect.stringContaining('last checkpoint'),
      }),
    );
    const { bytesWritten } = file.info;
    file.write(0, slot(0), compute);
    expect(file.info.bytesWritten).toBe(bytesWritten);
    expect(read).toThrow('checksum');
    expect(() => file.wait(slot(3), compute)).toThrow('checksum');
  });

  test('a truncated file gives an error', () => {
    const file = open();
    fill(0, 5);
    file.write(8 * SLOT, slot(0), compute);
    file.wait(slot(0), compute);
    damage((descriptor) => ftruncateSync(descriptor, 8 * SLOT + PAGE));
    file.read(8 * SLOT, slot(1), compute);
    expect(() => file.wait(slot(1), compute)).toThrow(/end of the file|checksum/);
  });

  test('releasing a file waits for its transfers', () => {
    for (let round = 0; round < 5; ++round) {
      const file = open();
      for (const index of [0, 1, 2]) file.write(index * SLOT, slot(index), compute);
      file.read(0, slot(3), compute);
      opened.pop()?.dispose();
      expect(() => file.info).toThrow('swap file');
    }
  });
});

test('a disk without enough space gives an error with the free bytes, before any is taken', () => {
  const { bavail, bsize } = statfsSync(folder);
  let thrown: DsError | undefined;
  try {
    open({ bytes: 10 * 2 ** 40, purpose: '10995.1 GB: what a test wants' });
  } catch (error) {
    thrown = error as DsError;
  }
  expect(thrown).toMatchObject({
    code: 'DS_IO',
    op: `preallocate ${join(folder, 'state')}`,
    expected: '10995.1 GB: what a test wants',
    got: expect.stringMatching(/^[\d.e+]+ GB free on \w+$/),
    hint: expect.stringContaining('Free space'),
  });
  // fallocate() of 10 TiB would fill the disk before it fails, so the addon must not call it.
  expect(1e9 * parseFloat(thrown?.got ?? '')).toBeGreaterThan((bavail * bsize) / 2);
});

test('a path that is not a folder gives an error', () => {
  const missing = join(folder, 'missing');
  expect(() => open({ folder: missing })).toThrow(
    expect.objectContaining({ code: 'DS_IO', op: `create ${join(missing, 'state')}` }),
  );
});

test.each([
  ['a place', () => open().write(PAGE, slot(0), compute)],
  ['a size', () => open().write(0, slot(0, 100), compute)],
  ['memory', () => open().write(0, { ...slot(0), offset: 64, bytes: PAGE }, compute)],
  ['a block', () => open({ blockBytes: 1000 })],
])('%s that is not aligned is refused', (_, call) => {
  expect(call).toThrow(expect.objectContaining({ code: 'DS_ARGUMENT' }));
});
