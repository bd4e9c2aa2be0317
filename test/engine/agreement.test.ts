// Tests the comparison of ranks: a difference counts unless it lies on given axes only, and its
// error names two ranks with their values.
import { Mesh } from '../../lib/comm/mesh.js';
import { AXES, type Axis, MeshShape } from '../../lib/comm/mesh-shape.js';
import { resolveConfig } from '../../lib/config/index.js';
import {
  firstDifference,
  requireAgreement,
  requireSameConfig,
} from '../../lib/engine/setup/agreement.js';
import { type DsConfig, DsError, nn, optim, seed } from '../../lib/index.js';

/** Two pipeline stages with two data ranks each, and tp 2: 0 1 | 2 3 || 4 5 | 6 7. */
const shape = MeshShape.over(8, { pp: 2, tp: 2 });
const OF_STAGE: Axis[] = ['dp', 'sp', 'tp'];

test.each<[digests: string, axes: readonly Axis[], pair: [number, number] | null]>([
  ['aaaaaaaa', AXES, null],
  ['aaaaaaba', AXES, [0, 6]],
  ['baaaaaaa', AXES, [0, 1]],
  // Compared only among ranks with one pipeline coordinate.
  ['aaaabbbb', OF_STAGE, null],
  ['aaaabbbb', AXES, [0, 4]],
  ['aaaabbcb', OF_STAGE, [4, 6]],
  ['abaabbcb', OF_STAGE, [0, 1]],
  // Compared among the replicas of a data rank.
  ['aabbaabb', ['pp', 'sp', 'tp'], null],
  ['aabbaabc', ['pp', 'sp', 'tp'], [2, 7]],
  ['abcdefgh', [], null],
])('%s along %j: %j', (digests, axes, pair) => {
  expect(firstDifference(shape, [...digests], axes)).toEqual(pair);
});

/** A store in memory, which all ranks share. */
function sharedStore() {
  const values = new Map<string, string>();
  return {
    set: async (key: string, value: string) => void values.set(key, value),
    get: async (key: string) => {
      const value = values.get(key);
      if (value !== undefined) return value;
      throw new DsError({ code: 'DS_COMM', op: 'store', expected: key, got: 'no such key' });
    },
    delete: async (key: string) => values.delete(key),
  };
}

interface Rank {
  config?: DsConfig;
  model?: nn.Module;
  lr?: number;
  /** Of group 0; all others are in group 1. */
  first?: (name: string) => boolean;
  planned?: string[];
  seed?: number;
}

/** The jobs of ranks that share a store. */
function jobsOf(size: number, mesh: object = {}) {
  const store = sharedStore();
  return Array.from({ length: size }, (_, rank) => ({
    rank,
    worldSize: size,
    store,
    timeout: 60_000,
    nextName: () => 'job',
    world: { check() {} },
    mesh: new Mesh(MeshShape.over(size, mesh), { rank, size } as never, null as never),
  }));
}

/** The error of each rank of a job; null for a rank that agrees. */
function disagreement(
  ranks: readonly Rank[],
  mesh: object = {},
  isCut = false,
): Promise<(DsError | null)[]> {
  const size = ranks.length;
  const jobs = jobsOf(size, mesh);
  const calls = ranks.map(async (input, rank) => {
    const { model = new nn.Linear(2, 3), lr = 0.5, first = () => true } = input;
    const named = [...model.namedParameters()];
    const groups = [true, false].map((isFirst) => ({
      params: named.flatMap(([name, one]) => (first(name) === isFirst ? [one] : [])),
    }));
    const optimizer = new optim.AdamW(
      groups.filter(({ params }) => params.length > 0),
      { lr },
    );
    const config = resolveConfig(
      { train_micro_batch_size_per_gpu: 1, ...input.config },
      { worldSize: size },
    );
    seed(input.seed ?? 1);
    const planned = input.planned ? ({ keys: input.planned } as never) : null;
    const asked = { module: model, config, optimizer, schedules: { name: 'none' } };
    return requireAgreement({ job: jobs[rank] as never, planned }, asked as never, isCut);
  });
  return Promise.all(
    calls.map((call) =>
      call.then(
        () => null,
        (error: DsError) => error,
      ),
    ),
  );
}

test('equal ranks agree; printing and planned keys may differ', async () => {
  const printing: DsConfig = { steps_per_print: 3, wall_clock_breakdown: true };
  expect(await disagreement([{}, { config: printing }])).toEqual([null, null]);
  const planned = ['zero_optimization.stage'];
  const other: DsConfig = { zero_optimization: { stage: 2 } };
  expect(await disagreement([{ planned }, { planned, config: other }])).toEqual([null, null]);
  expect(await disagreement([{}, { config: other }])).not.toEqual([null, null]);
});

test.each<[what: string, other: Rank, error: object]>([
  [
    'a value of the configuration',
    { config: { gradient_clipping: 0.25 } },
    {
      code: 'DS_CONFIG',
      op: 'gradient_clipping',
      got: '0.25 on rank 1',
      expected: 'the same on every rank: 1 as on rank 0',
      hint: 'Give every rank the same config.',
    },
  ],
  [
    'a value inside a section',
    { config: { zero_optimization: { reduce_bucket_size: 1000 } } },
    { code: 'DS_CONFIG', op: 'zero_optimization.reduce_bucket_size', got: '1000 on rank 1' },
  ],
  [
    'a hyperparameter',
    { lr: 0.25 },
    {
      code: 'DS_ARGUMENT',
      op: 'initialize, optimizer group 0 lr',
      got: '0.25 on rank 1',
      hint: 'Give every rank the same optimizer.',
    },
  ],
  [
    'a shape',
    { model: new nn.Linear(2, 4) },
    {
      code: 'DS_ARGUMENT',
      op: 'initialize, parameter 0',
      got: 'weight [4, 2], requires a gradient, in group 0 on rank 1',
      expected: expect.stringContaining('weight [3, 2], requires a gradient, in group 0 as on'),
      hint: 'Give every rank the same model. Also different: parameter 1.',
    },
  ],
  [
    'the group of a parameter',
    { first: (name) => name === 'weight' },
    {
      code: 'DS_ARGUMENT',
      op: 'initialize, parameter 1',
      got: 'bias [3], requires a gradient, in group 1 on rank 1',
    },
  ],
  [
    'a number of parameters',
    { model: new nn.Linear(2, 3, { bias: false }) },
    { op: 'initialize, parameter 1', got: 'none on rank 1' },
  ],
])('%s must be equal', async (_, other, error) => {
  const [first, second] = await disagreement([{}, other]);
  expect(second).toMatchObject(error);
  expect(first?.message).toBe(second?.message);
});

test('the error on all ranks names the first two that differ', async () => {
  const errors = await disagreement([{}, {}, { lr: 0.25 }, { lr: 0.125 }]);
  expect(new Set(errors.map((error) => error?.got))).toEqual(new Set(['0.25 on rank 2']));
});

test('lists further differences, four of them by name', async () => {
  const layers = (count: number) => (width: number) =>
    new nn.Sequential(
      ...Array.from({ length: count }, () => new nn.Linear(2, width, { bias: false })),
    );
  const also = async (count: number): Promise<string | undefined> => {
    const make = layers(count);
    const [error] = await disagreement([{ model: make(2) }, { model: make(3) }]);
    return error?.hint;
  };
  const names = (count: number) =>
    Array.from({ length: count }, (_, i) => `parameter ${i + 1}`).join(', ');
  expect(await also(1)).toBe('Give every rank the same model.');
  expect(await also(5)).toBe(`Give every rank the same model. Also different: ${names(4)}.`);
  expect(await also(6)).toBe(`Give every rank the same model. Also different: ${names(4)}, ....`);
});

test('parts of a divided model are complete', async () => {
  const parts = (offsets: number[], isCut = true) =>
    disagreement(
      offsets.map((offset) => {
        const model = new nn.Linear(2, 3, { bias: false });
        model.weight.partOf({ whole: [6, 2], boxes: [{ offset: [offset, 0], shape: [3, 2] }] });
        return { model };
      }),
      { tp: 2 },
      isCut,
    );
  expect(await parts([0, 3])).toEqual([null, null]);
  expect(await parts([0, 0], false)).toEqual([null, null]);
  const [error] = await parts([0, 0]);
  expect(error).toMatchObject({
    code: 'DS_ARGUMENT',
    op: 'initialize, weight',
    got: 'element [0, 0] on two ranks',
    expected: 'parts of 2 ranks on tp that together are [6, 2]',
  });
});

test('only ranks of one model need equal random states', async () => {
  const two = [{}, { seed: 2 }];
  expect(await disagreement(two)).toEqual([null, null]);
  const [error] = await disagreement(two, { tp: 2 });
  expect(error).toMatchObject({
    code: 'DS_ARGUMENT',
    op: expect.stringMatching(/^initialize, random /),
    hint: expect.stringContaining('Call seed() with the same number'),
  });
});

test('before the model changes, only the configuration is compared', async () => {
  const agreementOf = (configs: DsConfig[]) =>
    Promise.all(
      jobsOf(configs.length).map((job, rank) => {
        const options = { train_micro_batch_size_per_gpu: 1, ...configs[rank] };
        const config = resolveConfig(options, { worldSize: configs.length });
        return requireSameConfig(job as never, config).then(
          () => null,
          (error: DsError) => [error.code, error.op, error.got],
        );
      }),
    );
  expect(await agreementOf([{}, { steps_per_print: 5 }])).toEqual([null, null]);
  const error = ['DS_CONFIG', 'gradient_clipping', '0.5 on rank 1'];
  expect(await agreementOf([{}, { gradient_clipping: 0.5 }])).toEqual([error, error]);
  // A single rank exchanges nothing.
  const alone = { worldSize: 1, store: null } as never;
  await requireSameConfig(alone, resolveConfig({ train_batch_size: 1 }, { worldSize: 1 }));
});
