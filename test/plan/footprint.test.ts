// Tests the memory of a parameter by its strategies, for the tiles of an update.
import { chooseMasters, computeFootprint, type StateChoice } from '../../lib/plan/footprint.js';

const bytes = { weight: 2, gradient: 2, state: 8 };
const choice = (options: Partial<StateChoice>): StateChoice => ({
  placement: 'host',
  masters: 'f32',
  weights: 'device',
  speculates: false,
  ...options,
});

test('upper halves that leave host memory need two slots, of bounded tiles', () => {
  const split = computeFootprint(choice({ masters: 'split' }), bytes);
  expect(split.tile.host).toBe(2 * 2);
  expect(split.largestTile).toBe(2 ** 26);
  // Whole masters and offloaded weights need no slot.
  for (const other of [choice({}), choice({ masters: 'split', weights: 'host' })]) {
    const { tile, largestTile } = computeFootprint(other, bytes);
    expect([tile.host, largestTile]).toEqual([0, Infinity]);
  }
});

test.each<[StateChoice['placement'], boolean, boolean, string]>([
  ['host', true, false, 'split'],
  ['host', true, true, 'f32'],
  ['host', false, false, 'f32'],
  ['streamed', true, false, 'split'],
  ['streamed', true, true, 'joined'],
  ['device', true, false, 'f32'],
  ['nvme', true, false, 'f32'],
])('%s, splits %p, speculates %p: masters are %s', (placement, splits, speculates, masters) => {
  expect(chooseMasters(placement, { splits, speculates })).toBe(masters);
});
