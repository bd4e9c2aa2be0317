// Tests which weights of a disk stay in memory: as many as fit, spread over the order of use.
import { stayInMemory } from '../../lib/zero/state/disk-weights.js';
import type { WeightUnit } from '../../lib/zero/unit.js';

/** The units that stay, by their place in the order of use. */
function places(sizes: readonly number[], most: number): number[] {
  const kept = sizes.map((numel) => ({ unit: {} as WeightUnit, numel }));
  const stays = stayInMemory(kept, most);
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
])('of units with %j elements, %i elements stay: %j', (sizes, most, stays) => {
  expect(places(sizes, most)).toEqual(stays);
});
