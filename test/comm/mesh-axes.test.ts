// Tests a mesh with axes beyond those of a job: experts (ep) and contexts (cp).
import { Mesh } from '../../lib/comm/mesh.js';
import { MeshShape } from '../../lib/comm/mesh-shape.js';
import type { ProcessGroup } from '../../lib/comm/process-group.js';

const AXES = ['pp', 'dp', 'ep', 'cp', 'sp', 'tp'] as const;
const SIZES = { pp: 2, dp: 2, ep: 3, cp: 2, sp: 1, tp: 2 };
const shape = new MeshShape(AXES, SIZES);

/** The group of a rank, as the mesh opens it. */
function meshAt(rank: number) {
  const opened: string[] = [];
  const world = { rank, size: shape.ranks } as ProcessGroup;
  const open = (name: string, ranks: readonly number[]): Promise<ProcessGroup> => {
    opened.push(name);
    const group = { rank: ranks.indexOf(rank), size: ranks.length, ranks };
    return Promise.resolve(group as unknown as ProcessGroup);
  };
  return { mesh: new Mesh(shape, world, open), opened, world };
}

test('a rank has a coordinate on each axis, the last axis fastest', () => {
  expect(shape.ranks).toBe(48);
  expect(String(shape)).toBe('pp 2 x dp 2 x ep 3 x cp 2 x tp 2');
  for (let rank = 0; rank < shape.ranks; ++rank) {
    const { pp, dp, ep, cp, sp, tp } = shape.coordinates(rank);
    expect(((((pp * 2 + dp) * 3 + ep) * 2 + cp) * 1 + sp) * 2 + tp).toBe(rank);
    expect(shape.rankAt(shape.coordinates(rank))).toBe(rank);
  }
});

test('groups of any axes divide the ranks, in any order of the names', async () => {
  for (let bits = 0; bits < 2 ** AXES.length; ++bits) {
    const axes = AXES.filter((_, i) => bits & (1 << i));
    const size = axes.reduce((product, axis) => product * SIZES[axis], 1);
    const groups = shape.groups(...axes.toReversed());
    expect(groups.map(({ length }) => length)).toEqual(groups.map(() => size));
    expect(groups.flat().sort((a, b) => a - b)).toEqual([...Array(shape.ranks).keys()]);
    const fixed = shape.others(...axes);
    expect([...axes, ...fixed].sort()).toEqual([...AXES].sort());
    for (const rank of [0, 17, 47]) {
      const { mesh, world } = meshAt(rank);
      const group = await mesh.group(axes.toReversed());
      if (size === shape.ranks) expect(group).toBe(world);
      else expect(groups).toContainEqual(group.ranks);
      expect(group.rank).toBe(mesh.place(...axes));
      expect(mesh.size(...axes)).toBe(size);
      for (const other of group.ranks ?? []) {
        for (const axis of fixed) {
          expect(shape.coordinates(other)[axis]).toBe(mesh.coordinates[axis]);
        }
      }
    }
  }
});

test('experts and the data ranks that repeat them', async () => {
  const { mesh, opened } = meshAt(shape.rankAt({ pp: 1, dp: 0, ep: 2, cp: 1, sp: 0, tp: 1 }));
  const coordinatesOf = ({ ranks }: ProcessGroup) => ranks.map((rank) => shape.coordinates(rank));
  const experts = await mesh.axis('ep');
  expect(coordinatesOf(experts).map(({ ep }) => ep)).toEqual([0, 1, 2]);
  const copies = await mesh.group(['dp', 'cp']);
  expect(copies.size).toBe(4);
  expect(new Set(coordinatesOf(copies).map(({ ep }) => ep))).toEqual(new Set([2]));
  expect(await mesh.group(['cp', 'dp'])).toBe(copies);
  // A group along an axis of one rank needs no axis of its own.
  expect(await mesh.group(['dp', 'cp', 'sp'])).toBe(copies);
  expect(opened).toEqual(['ep [27, 31, 35]', 'dp x cp [33, 35, 45, 47]']);
});

test('the rest of the ranks are on one axis', () => {
  const filled = MeshShape.filled(AXES, 'dp', 48, { ep: 3, tp: 2, cp: 2 });
  expect(String(filled)).toBe('dp 4 x ep 3 x cp 2 x tp 2');
  expect(() => MeshShape.filled(AXES, 'dp', 48, { ep: 5 })).toThrow(
    /product that divides 48, the number of ranks, got ep 5 = 5/,
  );
  expect(() => MeshShape.filled(AXES, 'cp', 48, { dp: 2, cp: 2 })).toThrow(
    /got dp 2 x cp 2 = 4\. Without cp, the job computes it/,
  );
});

test('an unknown axis is refused', async () => {
  const { mesh } = meshAt(5);
  const message = /mesh axis: expected "pp", "dp", "ep", "cp", "sp", "tp", got "xp"/;
  await expect(mesh.group(['dp', 'xp' as 'dp'])).rejects.toThrow(message);
  expect(() => mesh.size('xp' as 'dp')).toThrow(message);
  expect(() => shape.others('xp' as 'dp')).toThrow(message);
  expect(() => MeshShape.filled(AXES, 'dp', 4, { xp: 2 } as object)).toThrow(
    /mesh: expected the options pp, dp, ep, cp, sp, tp, got "xp"/,
  );
});
