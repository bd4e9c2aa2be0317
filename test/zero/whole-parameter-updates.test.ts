// Which layouts cut a parameter that an optimizer needs whole.
import { requireWholeParameters } from '../../lib/engine/setup/optimizer-needs.js';
import type { Optimizer } from '../../lib/optim/optimizer.js';
import { layoutUnit } from '../../lib/zero/layout.js';
import type { Unit } from '../../lib/zero/unit.js';

/** Needs the parameters of group 0 whole. */
const optimizer = {
  name: 'Mine',
  needsWholeParameters: (group: number): boolean => group === 0,
} as unknown as Optimizer;

function refuses(shapes: [group: number, size: number][], stage: number, shards: number) {
  const parameters = shapes.map(([group, size], i) => ({ name: `p${i}`, shape: [size], group }));
  const units = [{ layout: layoutUnit(parameters, { shards }) }] as unknown as Unit[];
  try {
    requireWholeParameters(optimizer, units, { stage, shards });
    return null;
  } catch (error) {
    return (error as Error).message;
  }
}

test.each<[shapes: [number, number][], stage: number, ranks: number, cut: string | null]>([
  [[[0, 128]], 1, 2, 'p0'],
  [[[0, 128]], 0, 2, null],
  [[[0, 128]], 3, 1, null],
  [[[1, 128]], 3, 2, null],
  [
    [
      [0, 64],
      [0, 64],
    ],
    2,
    2,
    null,
  ],
  [
    [
      [0, 64],
      [0, 65],
    ],
    2,
    2,
    'p1',
  ],
  [
    [
      [0, 0],
      [0, 10],
      [1, 400],
    ],
    3,
    4,
    null,
  ],
  [
    [
      [0, 64],
      [0, 0],
      [1, 64],
    ],
    3,
    2,
    null,
  ],
])('%j at stage %d on %d ranks: %s', (shapes, stage, ranks, cut) => {
  const message = refuses(shapes, stage, ranks);
  if (cut === null) expect(message).toBeNull();
  else expect(message).toContain(`divides ${cut} between ranks`);
});

test('an optimizer that shares its sums between ranks is accepted', () => {
  const units = [{ layout: layoutUnit([{ name: 'p', shape: [128], group: 0 }], { shards: 2 }) }];
  const sharing = { ...optimizer, applySums() {} } as unknown as Optimizer;
  const sharding = { stage: 1, shards: 2 };
  expect(() => requireWholeParameters(optimizer, units as unknown as Unit[], sharding)).toThrow();
  expect(() => requireWholeParameters(sharing, units as unknown as Unit[], sharding)).not.toThrow();
});
