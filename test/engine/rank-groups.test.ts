// Tests the groups of every rank of a job, without processes: a mesh opens a group as a list of
// ranks.
import { Mesh } from '../../lib/comm/mesh.js';
import { type MeshOptions, MeshShape } from '../../lib/comm/mesh-shape.js';
import { resolveConfig } from '../../lib/config/index.js';
import {
  groupsOf,
  type ModelAxes,
  openRanks,
  type Ranks,
  shardSizes,
} from '../../lib/engine/ranks.js';
import { ReleaseStack } from '../../lib/engine/release-stack.js';
import { adoptIntoUnits } from '../../lib/engine/setup/zero.js';
import { type Engine, initialize, nn, optim, zeros } from '../../lib/index.js';
import { refusal } from '../support/refusal.js';

const linear = () => new nn.Linear(16, 32);
const adam = (params: nn.Parameter[]) => new optim.AdamW(params, { lr: 0.1 });

interface Group {
  ranks: number[];
  rank: number;
  size: number;
}

/** A job of one rank, and the lists of ranks that its newGroup() opened. */
function jobOf(rank: number, size: number, mesh: MeshOptions = {}) {
  const groupOf = (ranks: readonly number[]): Group => {
    return { ranks: [...ranks], rank: ranks.indexOf(rank), size: ranks.length };
  };
  const world = groupOf(Array.from({ length: size }, (_, i) => i));
  const open = async (_: string, ranks: readonly number[]) => groupOf(ranks) as never;
  const made: (readonly number[])[] = [];
  const job = {
    world,
    localRank: rank % 2,
    worldSize: size,
    mesh: new Mesh(MeshShape.over(size, mesh), world as never, open),
    newGroup: async (ranks: readonly number[]) => {
      made.push(ranks);
      return groupOf(ranks);
    },
  };
  return { job: job as never, made };
}

const ranksIn = (group: { ranks: readonly number[] } | null) => group && [...group.ranks];

/** The lists of ranks of each group. */
const listsOf = (ranks: Ranks) => ({
  data: ranksIn(ranks.dataGroup),
  shard: ranksIn(ranks.shardGroup),
  replica: ranksIn(ranks.replicaGroup),
  second: ranksIn(ranks.secondaryGroup),
  equal: ranksIn(ranks.broadcastGroup),
  tensor: ranksIn(ranks.tensorGroup),
  sequence: ranksIn(ranks.sequenceGroup),
});

const none = { replica: null, second: null, tensor: null, sequence: null };

test('without cuts, ranks of the other axes are replicas', async () => {
  const all = await Promise.all(
    [0, 1, 2, 3].map((rank) => openRanks(jobOf(rank, 4, { tp: 2 }).job)),
  );
  expect(all.map(listsOf)).toEqual(
    [0, 1, 2, 3].map((rank) => {
      const data = rank % 2 === 0 ? [0, 2] : [1, 3];
      return { ...none, data, shard: data, equal: [0, 1, 2, 3] };
    }),
  );
  expect(all.map(({ isReplica }) => isReplica)).toEqual([false, true, false, true]);
  expect(all.map(({ lossRanks }) => lossRanks)).toEqual([
    [0, 2],
    [1, 3],
    [0, 2],
    [1, 3],
  ]);
  expect(all.map(({ normRanks }) => normRanks)).toEqual([
    [0, 2],
    [1, 3],
    [0, 2],
    [1, 3],
  ]);
  expect(all[1]?.localRank).toBe(1);
});

test.each<[cuts: ModelAxes, mesh: MeshOptions, rank: number, found: object]>([
  [
    { layers: true },
    { tp: 2 },
    3,
    {
      data: [1, 3],
      shard: [1, 3],
      equal: [1, 3],
      tensor: [2, 3],
      sequence: null,
      isReplica: false,
      lossRanks: [0, 2],
      normRanks: [0, 1, 2, 3],
    },
  ],
  [
    { tokens: true },
    { sp: 2 },
    3,
    {
      data: [1, 3],
      shard: [0, 1, 2, 3],
      equal: [0, 1, 2, 3],
      tensor: null,
      sequence: [2, 3],
      isReplica: false,
      lossRanks: [0, 2],
      normRanks: [0, 1, 2, 3],
    },
  ],
  [
    { stages: true },
    { pp: 2 },
    1,
    {
      data: [0, 1],
      shard: [0, 1],
      equal: [0, 1],
      tensor: null,
      sequence: null,
      isReplica: false,
      lossRanks: [2, 3],
      normRanks: [0, 1],
    },
  ],
])('cuts %j of %j, rank %i', async (cuts, mesh, rank, found) => {
  const ranks = await openRanks(jobOf(rank, 4, mesh).job, cuts);
  const { isReplica, lossRanks, normRanks } = ranks;
  expect({ ...listsOf(ranks), isReplica, lossRanks, normRanks }).toMatchObject(found);
});

test('of a parameter that several tensor ranks hold, the first one counts it', async () => {
  const part = { whole: [4], boxes: [{ offset: [2], shape: [2] }] };
  const whole = { whole: [4], boxes: [{ offset: [0], shape: [4] }] };
  const primary = async (rank: number) => {
    const { isPrimary } = await openRanks(jobOf(rank, 2, { tp: 2 }).job, { layers: true });
    return [part, whole].flatMap((region) =>
      [false, true].map((isReplica) => isPrimary({ region, isReplica } as never)),
    );
  };
  expect(await primary(0)).toEqual([true, false, true, false]);
  expect(await primary(1)).toEqual([true, false, false, false]);
});

test('MiCS: consecutive ranks are a replica, and ranks with one shard form a group', async () => {
  const all = await Promise.all(
    [0, 1, 2, 3, 4, 5].map((rank) =>
      openRanks(jobOf(rank, 6).job, {}, { replica: 2, secondary: null }),
    ),
  );
  expect(all.map(({ shardGroup }) => ranksIn(shardGroup))).toEqual(
    [0, 0, 2, 2, 4, 4].map((first) => [first, first + 1]),
  );
  expect(all.map(({ replicaGroup }) => ranksIn(replicaGroup))).toEqual(
    [0, 1, 0, 1, 0, 1].map((first) => [first, first + 2, first + 4]),
  );
  expect(all.map(({ isReplica }) => isReplica)).toEqual([false, false, true, true, true, true]);
  expect(all.map(({ normRanks }) => normRanks)).toEqual(
    [0, 0, 2, 2, 4, 4].map((first) => [first, first + 1]),
  );
});

test('MiCS with parts of layers: the norm of a replica has its tensor ranks', async () => {
  const { job } = jobOf(4, 8, { tp: 2 });
  const { shardGroup, replicaGroup, normRanks } = await openRanks(
    job,
    { layers: true },
    { replica: 2 },
  );
  expect([ranksIn(shardGroup), ranksIn(replicaGroup)]).toEqual([
    [4, 6],
    [0, 4],
  ]);
  expect(normRanks).toEqual([4, 5, 6, 7]);
});

test('a replica of all ranks, or a copy of all ranks, opens no group', async () => {
  const { job, made } = jobOf(1, 4);
  const { shardGroup, replicaGroup, secondaryGroup } = await openRanks(
    job,
    {},
    { replica: 4, secondary: 4 },
  );
  expect([ranksIn(shardGroup), replicaGroup]).toEqual([[0, 1, 2, 3], null]);
  expect(secondaryGroup).toBe(shardGroup);
  expect(made).toEqual([]);
});

test('hpZ: neighbours divide the second copy; engines of a job share the group', async () => {
  const { job, made } = jobOf(3, 4);
  const ranks = await openRanks(job, {}, { secondary: 2 });
  expect(listsOf(ranks)).toMatchObject({ shard: [0, 1, 2, 3], replica: null, second: [2, 3] });
  const again = await openRanks(job, {}, { secondary: 2 });
  expect(again.secondaryGroup).toBe(ranks.secondaryGroup);
  expect(made).toEqual([[2, 3]]);
  expect([...groupsOf(ranks)].map(ranksIn)).toEqual([
    [0, 1, 2, 3],
    [2, 3],
  ]);
});

test('a group that failed to open can be opened again', async () => {
  const { job } = jobOf(0, 4);
  const broken = job as { newGroup: (ranks: readonly number[]) => Promise<Group> };
  const { newGroup } = broken;
  broken.newGroup = async () => {
    throw new Error('no connection');
  };
  await expect(openRanks(job, {}, { secondary: 2 })).rejects.toThrow('no connection');
  broken.newGroup = newGroup;
  expect(ranksIn((await openRanks(job, {}, { secondary: 2 })).secondaryGroup)).toEqual([0, 1]);
});

test.each([
  ['mics_shard_size', { replica: 3 }],
  ['zero_hpz_partition_size', { secondary: 3 }],
])('%s must divide the ranks', async (key, sizes) => {
  const error = await refusal(() => openRanks(jobOf(0, 4).job, {}, sizes));
  expect(error).toMatchObject({
    code: 'DS_CONFIG',
    op: `zero_optimization.${key}`,
    got: '3',
    expected: 'a divisor of the 4 ranks of the ZeRO shard group',
    hint: expect.stringContaining('one host'),
  });
});

test('hpZ and MiCS sizes act at stage 3 only, and one rank has no second copy', () => {
  const sizes = (stage: number, copy: number, secondary: number) =>
    shardSizes({
      zero_optimization: { stage, mics_shard_size: copy, zero_hpz_partition_size: secondary },
    } as never);
  expect(sizes(3, 2, 2)).toEqual({ replica: 2, secondary: 2 });
  expect(sizes(3, -1, 1)).toEqual({ replica: null, secondary: null });
  expect(sizes(3, 1, 2)).toEqual({ replica: 1, secondary: 2 });
  expect(sizes(2, 2, 2)).toEqual({});
});

describe('parameter groups with ranks of their own', () => {
  const open: Engine[] = [];
  afterEach(() => {
    for (const engine of open.splice(0).reverse()) engine.destroy();
  });

  async function engineOf(model: nn.Module, optimizer: optim.Optimizer): Promise<Engine> {
    const config = { train_batch_size: 1 };
    const { engine } = await initialize({ model, optimizer, config, device: 'cpu' });
    open.push(engine);
    return engine;
  }

  test('have their own rank group and units', async () => {
    const first = linear();
    const { parts } = await engineOf(first, adam(first.parameters()));
    const { world: zeroGroup } = parts.ranks;
    const model = linear();
    const [weight, bias] = model.parameters() as [nn.Parameter, nn.Parameter];
    const groups = [{ params: [weight] }, { params: [bias], zeroGroup }];
    const engine = await engineOf(model, new optim.AdamW(groups, { lr: 0.1 }));
    const { zeroGroups, units } = engine.parts;
    expect(zeroGroups.own).toEqual([
      {
        parameters: [bias],
        group: {
          name: 'group 1',
          group: zeroGroup,
          source: zeroGroup,
          dataRanks: 1,
          replicas: null,
          secondary: null,
          spansStages: false,
        },
      },
    ]);
    expect(units.map(({ name }) => name)).toEqual(['root', 'root (group 1)']);
    const whole = new optim.Lamb([{ params: model.parameters(), zeroGroup } as never], { lr: 0.1 });
    engine.destroy();
    open.pop();
    expect(await refusal(() => engineOf(model, whole))).toMatchObject({
      code: 'DS_CONFIG',
      op: 'optimizer Lamb',
      expected: 'an elementwise optimizer with a zeroGroup of a parameter group',
    });
  });

  test('of whole frozen parameters and buffers, all ranks get the values of the first', async () => {
    class Net extends nn.Module {
      readonly first = linear();
      readonly second = new nn.Linear(32, 8, { bias: false });
      readonly seen = new Tensor3();

      forward(): void {}
    }
    class Tensor3 extends nn.Module {
      readonly values = zeros([3]).keep();

      forward(): void {}
    }
    const engineAt = async (stage: number) => {
      const plain = linear();
      const { parts } = await engineOf(plain, adam(plain.parameters()));
      const sent: number[] = [];
      const source = {
        rank: 0,
        size: 2,
        ranks: [0, 1],
        broadcast: ({ shape }: { shape: number[] }, root: number) => {
          expect(root).toBe(0);
          sent.push(shape.reduce((a, b) => a * b, 1));
          return { wait() {} };
        },
      };
      const module = new Net();
      module.first.requiresGrad_(false);
      const config = resolveConfig(
        {
          train_batch_size: 1,
          zero_optimization: { stage, offload_param: { device: stage === 3 ? 'cpu' : 'none' } },
        } as never,
        { worldSize: 1 },
      );
      const { device } = parts;
      const optimizer = adam(module.second.parameters());
      const site = { owned: new ReleaseStack(), undo: new ReleaseStack() };
      const ranks = { ...parts.ranks, broadcastGroup: source };
      const decisions = { module, config, device, optimizer, progress: parts.progress };
      adoptIntoUnits(decisions as never, {}, { ranks, ties: [] } as never, site);
      site.owned.release();
      return sent;
    };
    // The frozen layer and the buffer, then the trained layer, which is in a unit.
    expect(await engineAt(0)).toEqual([512, 32, 3, 256]);
    // With sharded weights, the frozen layer is in a unit too.
    expect((await engineAt(3)).sort((a, b) => a - b)).toEqual([3, 32, 256, 512]);
  });

  test('exclude copies of the model along other axes', () => {
    const groupsHeld = (tp: number, zeroGroup?: object) => {
      const { mesh } = jobOf(0, tp, { tp }).job as { mesh: Mesh };
      const ranks = { mesh, replicaAxes: ['pp', 'tp'], dataGroup: { size: 1 } };
      const stopped = new Error('after the check');
      const module = {
        moveBuffers: () => {
          throw stopped;
        },
      };
      const optimizer = new optim.AdamW([{ params: linear().parameters(), zeroGroup } as never], {
        lr: 0.1,
      });
      const given = {
        module,
        config: resolveConfig({ train_batch_size: 1 }, { worldSize: 1 }),
        device: null,
        optimizer,
      };
      const site = { owned: new ReleaseStack(), undo: new ReleaseStack() };
      try {
        return adoptIntoUnits(given as never, {}, { ranks, ties: [] } as never, site);
      } catch (error) {
        return error === stopped ? null : error;
      }
    };
    expect([groupsHeld(2), groupsHeld(1, {})]).toEqual([null, null]);
    expect(groupsHeld(2, {})).toMatchObject({
      code: 'DS_CONFIG',
      op: 'optimizer group 0 zeroGroup',
      got: '2 copies along pp, tp',
    });
  });
});
