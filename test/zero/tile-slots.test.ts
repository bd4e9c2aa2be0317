// Tests which file transfers the slots in host memory request, and when.
import { cpu } from '../../lib/runtime/device.js';
import type { HostRange } from '../../lib/runtime/file.js';
import type { SwapFile } from '../../lib/runtime/swap-file.js';
import { type SlotOptions, type StoredTile, TileSlots } from '../../lib/zero/state/tile-slots.js';

const BYTES = 256;
const tiles: StoredTile[] = [0, 1, 2, 3, 4].map((i) => ({
  offset: i * BYTES,
  bytes: BYTES,
  fields: [{ name: 'master', dtype: 'f32', offset: 0, numel: BYTES / 4, initial: i + 0.5 }],
}));

let open: TileSlots[] = [];
afterEach(() => {
  for (const slots of open) slots.dispose();
  open = [];
});

/** Slots over a file that logs requests: "read 2", and "wait" for a write. */
function slotsOf(options: Partial<SlotOptions> = {}) {
  const log: string[] = [];
  const { compute } = cpu();
  const input = { count: 3, readsAhead: true, writesBehind: true, ...options };
  const slots = new TileSlots(cpu(), compute, BYTES, input);
  open.push(slots);
  const transfer = (label: string) => (offset: number) =>
    void log.push(`${label} ${offset / BYTES}`);
  slots.use({
    read: transfer('read'),
    write: transfer('write'),
    wait: (_: HostRange) => void (log.at(-1)?.startsWith('write') && log.push('wait')),
    dispose() {},
  } as unknown as SwapFile);
  /** Opens and changes a tile, and writes it to the file; returns the logged requests. */
  const update = (index: number): string[] => {
    const tile = tiles[index] as StoredTile;
    slots.open(tile);
    slots.close(tile);
    slots.store(tile);
    return log.splice(0);
  };
  return { slots, log, update };
}

test('an unwritten tile is filled, and a tile with a slot is not read', () => {
  const { slots, log, update } = slotsOf();
  slots.open(tiles[2] as StoredTile);
  const field = slots.field(tiles[2] as StoredTile, 'master');
  expect(new Set(field.toArray())).toEqual(new Set([2.5]));
  field.release();
  expect(log).toEqual([]);
  expect(update(2)).toEqual(['write 2']);
  expect(update(2)).toEqual(['write 2']);
});

test('the number of prefetched tiles is the number of free slots', () => {
  const { slots, log, update } = slotsOf();
  for (const i of tiles.keys()) update(i);
  slots.open(tiles[4] as StoredTile);
  slots.expect([0, 1, 2, 3].map((i) => tiles[i] as StoredTile));
  expect(log.splice(0)).toEqual(['read 0', 'read 1']);
  expect([update(0), update(1)]).toEqual([['write 0'], ['write 1']]);
});

test('tiles that are expected while every slot is open are read later', () => {
  const { slots, log, update } = slotsOf({ count: 2 });
  for (const i of tiles.keys()) update(i);
  for (const i of [0, 1]) slots.open(tiles[i] as StoredTile);
  log.length = 0;
  slots.expect([2, 3].map((i) => tiles[i] as StoredTile));
  expect(log).toEqual([]);
  for (const i of [0, 1]) slots.close(tiles[i] as StoredTile);
  expect(update(2)).toContain('read 2');
});

test('without reading ahead a tile is read when it is opened', () => {
  const { slots, log, update } = slotsOf({ readsAhead: false });
  for (const i of tiles.keys()) update(i);
  slots.expect(tiles);
  expect(log).toEqual([]);
  expect(update(0)).toEqual(['read 0', 'write 0']);
});

test('without write-behind, the stream waits for its writes', () => {
  const { update } = slotsOf({ writesBehind: false });
  expect(update(0)).toEqual(['write 0', 'wait']);
});

test('the least recently used slot is taken, and written if it was changed', () => {
  const { slots, log } = slotsOf({ count: 2 });
  const [first, second, third] = tiles as [StoredTile, StoredTile, StoredTile];
  for (const tile of [first, second]) {
    slots.open(tile);
    slots.close(tile);
  }
  slots.withField(first, 'master', 'read', () => {});
  slots.withField(third, 'master', 'replace', () => {});
  expect(log.splice(0)).toEqual(['write 1', 'wait']); // Evicts tile 1 to use its slot.
  slots.withField(second, 'master', 'read', () => {});
  expect(log).toEqual(['write 0', 'read 1']);
});

test('a tile is written after a change of a field, and not after a read', () => {
  const { slots, log, update } = slotsOf();
  const [first] = tiles as [StoredTile];
  update(0);
  slots.withField(first, 'master', 'read', () => {});
  slots.store(first);
  expect(log.splice(0)).toEqual([]);
  slots.withField(first, 'master', 'change', () => {});
  slots.store(first);
  expect(log).toEqual(['write 0']);
});
