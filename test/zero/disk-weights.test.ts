// Tests weights on a disk: which of them stay in memory, and that the others come back unchanged.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { cpu } from '../../lib/runtime/device.js';
import { SwapFile } from '../../lib/runtime/swap-file.js';
import { held, Tensor } from '../../lib/tensor/index.js';
import { liveTensors } from '../../lib/tensor/tensor.js';
import type { Fragment } from '../../lib/zero/layout.js';
import { chooseResidents, DiskWeights } from '../../lib/zero/state/disk-weights.js';
import type { WeightUnit } from '../../lib/zero/unit.js';

/** The units that stay, by their place in the order of use. */
function places(sizes: readonly number[], limit: number): number[] {
  const kept = sizes.map((numel) => ({ unit: {} as WeightUnit, numel }));
  const stays = chooseResidents(kept, limit);
  return kept.flatMap(({ unit }, i) => (stays.has(unit) ? [i] : []));
}

test.each<[sizes: number[], most: number, stays: number[]]>([
  [Array(8).fill(10), 40, [1, 3, 5, 7]],
  [Array(8).fill(10), 20, [3, 7]],
  [Array(8).fill(10), 0, []],
  [Array(8).fill(10), 9, []],
  [Array(8).fill(10), 80, [0, 1, 2, 3, 4, 5, 6, 7]],
  [Array(8).fill(10), 1e9, [0, 1, 2, 3, 4, 5, 6, 7]],
  // The rest of the room goes to units that fit.
  [[100, 10, 10], 20, [1, 2]],
])('of units with %j elements, %i elements stay: %j', (sizes, limit, stays) => {
  expect(places(sizes, limit)).toEqual(stays);
});

describe('a file of weights', () => {
  const device = cpu();
  const folder = mkdtempSync(join(tmpdir(), 'ds-disk-weights-'));
  afterAll(() => rmSync(folder, { recursive: true }));

  const unitOf = (name: string) => ({ name, dtype: 'f32', device }) as unknown as WeightUnit;
  /** Units of 256 elements, with tiles of 128. */
  function openWeights(names: readonly string[], more: object = {}) {
    const units = names.map((name) => ({ unit: unitOf(name), numel: 256 }));
    const access = { folder, label: 'weights', blockBytes: 4096, depth: 4, checkers: 1 };
    const sizes = { maxInMemory: 0, slots: 3, slotNumel: 128 };
    const weights = new DiskWeights(device, { weights: units, ...access, ...sizes, ...more });
    return {
      weights,
      kept: units,
      stores: units.map(({ unit, numel }) => weights.create(unit, numel)),
    };
  }
  const values = (first: number): Tensor =>
    held(() =>
      Tensor.from(
        Float32Array.from({ length: 256 }, (_, i) => first + i),
        { device },
      ),
    );
  const entry = { name: 'p', numel: 20, shape: [4, 5] };
  const fragment = (offset: number, numel: number) =>
    ({ entry, offset, numel }) as unknown as Fragment;

  test('returns the weights of each unit, and lends fragments', () => {
    const before = liveTensors();
    const { weights, kept, stores } = openWeights(['a', 'b', 'c', 'd']);
    expect(stores.map(({ memory }) => memory)).toEqual([null, null, null, null]);
    expect(stores.map(({ bytes }) => bytes)).toEqual(
      Array(4).fill({ device: 0, host: 0, disk: 8192 }),
    );
    expect(weights.slotBytes).toBe(3 * 4096);
    for (const [i, store] of stores.entries()) {
      const tensor = values(1000 * i);
      store.store(tensor, device.compute);
      tensor.release();
    }
    const out = values(0);
    const readOf = (i: number): unknown => {
      stores[i]?.load(out, device.compute);
      return out.toArray();
    };
    const count = (first: number) => Array.from({ length: 256 }, (_, i) => first + i);
    weights.expect(kept.map(({ unit }) => unit));
    for (const i of [0, 1, 2, 3]) expect(readOf(i)).toEqual(count(1000 * i));
    // Across the border of two tiles, a part, and a whole parameter.
    for (const [offset, numel, shape] of [
      [120, 16, [16]],
      [200, 20, [4, 5]],
    ] as const) {
      const lent = stores[1]?.lend(fragment(offset, numel));
      lent?.wait();
      expect(lent?.tensor.shape).toEqual(shape);
      expect(lent?.tensor.buffer.pinned).toBe(true);
      const flat = count(1000 + offset).slice(0, numel);
      expect(lent?.tensor.toArray().flat()).toEqual(flat);
      lent?.tensor.buffer.write(
        0,
        Float32Array.from(flat, (value) => -value),
      );
      lent?.keep();
      lent?.tensor.release();
    }
    const isLent = (i: number) => (i >= 120 && i < 136) || (i >= 200 && i < 220);
    const changed = count(1000).map((value, i) => (isLent(i) ? -value : value));
    expect(readOf(1)).toEqual(changed);
    expect(readOf(0)).toEqual(count(0));
    expect(weights.disk).not.toBeNull();
    out.release();
    weights.dispose();
    expect(liveTensors()).toBe(before);
  });

  test('reads the announced units before their use', () => {
    const { weights, kept, stores } = openWeights(['a', 'b', 'c'], { slots: 4, slotNumel: 256 });
    for (const store of stores) {
      const tensor = values(1);
      store.store(tensor, device.compute);
      tensor.release();
    }
    const read = jest.spyOn(SwapFile.prototype, 'read');
    const write = jest.spyOn(SwapFile.prototype, 'write');
    const wait = jest.spyOn(SwapFile.prototype, 'wait');
    weights.expect(kept.map(({ unit }) => unit));
    // All of them still have a slot.
    expect(read).not.toHaveBeenCalled();
    const few = openWeights(['a', 'b', 'c', 'd'], { slots: 2, slotNumel: 256 });
    for (const store of few.stores) {
      const tensor = values(1);
      store.store(tensor, device.compute);
      tensor.release();
    }
    expect(write).toHaveBeenCalledTimes(4);
    // Once for the slot: the stream does not wait for the write.
    expect(wait).toHaveBeenCalledTimes(4);
    few.weights.expect(few.kept.map(({ unit }) => unit));
    expect(read).toHaveBeenCalledTimes(1);
    for (const spy of [read, write, wait]) spy.mockRestore();
    weights.dispose();
    few.weights.dispose();
  });

  test('stores only the units that do not fit into memory', () => {
    const open = jest.spyOn(SwapFile, 'open');
    const { weights, stores } = openWeights(['a', 'b', 'c', 'd'], { maxInMemory: 512 });
    expect(stores.map(({ memory }) => memory?.shape ?? null)).toEqual([null, [256], null, [256]]);
    expect(stores[1]?.memory?.buffer.pinned).toBe(true);
    const [{ purpose, bytes }] = open.mock.calls[0] as [{ purpose: string; bytes: number }];
    expect([purpose, bytes]).toEqual(['0.00001638 GB: the weights of 512 parameters', 4 * 4096]);
    for (const store of stores) store.dispose();
    weights.dispose();
    const all = openWeights(['a', 'b'], { maxInMemory: 512 });
    expect([all.weights.disk, all.weights.slotBytes]).toEqual([null, 0]);
    all.weights.expect(all.kept.map(({ unit }) => unit));
    expect(open).toHaveBeenCalledTimes(1);
    for (const store of all.stores) store.dispose();
    all.weights.dispose();
    open.mockRestore();
  });

  test('that cannot be opened leaves no memory', () => {
    const before = device.memory.inUse;
    expect(() => openWeights(['a'], { folder: join(folder, 'none') })).toThrow(
      expect.objectContaining({ code: 'DS_IO' }),
    );
    expect(device.memory.inUse).toBe(before);
  });
});
