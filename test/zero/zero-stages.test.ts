// Tests units with several groups: gradients and weights of each group flow between that group's
// ranks.
import { cpu } from '../../lib/runtime/device.js';
import { layoutUnit } from '../../lib/zero/layout.js';
import { Partition } from '../../lib/zero/partition.js';
import { type ZeroStage, ZeroStages } from '../../lib/zero/stage.js';
import type { Unit } from '../../lib/zero/unit.js';

/** A stage of `units` with flows that record their calls. */
function stageOf(
  name: string,
  units: readonly Unit[],
  { log = [] as string[], factor = 1, isSharded = false, takesEach = true } = {},
) {
  const say =
    (verb: string) =>
    (kind?: Unit | Partition): void => {
      const text = kind instanceof Partition ? `part of ${kind.unit.name}` : kind?.name;
      log.push([name, verb, text].filter(Boolean).join(' '));
    };

  const weights = {
    isSharded,
    keep: () => [{ offset: 0, numel: 0 }, null],
    ...verbs(['prepareUnit', 'adoptShard', 'acquire', 'release', 'endBackward'], say),
    ...verbs(['publish', 'dispatch', 'dispose'], say),
  };
  const route = { buckets: verbs(['flush', 'dispose'], say) };
  const gradients = { route, factor, takesEach, ...verbs(['reduce'], say) };
  return { units, frozen: [], gradients, weights } as unknown as ZeroStage;
}

const verbs = <T>(names: readonly string[], of: (name: string) => T): Record<string, T> =>
  Object.fromEntries(names.map((name) => [name, of(name)]));

const unit = (name: string): Unit =>
  ({ name, device: cpu(), layout: layoutUnit([]), markChanged() {} }) as unknown as Unit;

const [attention, expert, head] = ['attention', 'expert', 'head'].map(unit) as [Unit, Unit, Unit];

function buildStages(log: string[]): ZeroStages {
  return new ZeroStages(
    [attention, expert, head],
    [
      stageOf('all', [attention, head], { log, takesEach: false }),
      stageOf('few', [expert], { log }),
    ],
  );
}

test('partitions are in forward order at every stage', () => {
  const names = buildStages([]).partitions.map(({ unit: { name } }) => name);
  expect(names).toEqual(['attention', 'expert', 'head']);
});

test('calls about a unit reach only the flows of its stage', () => {
  const log: string[] = [];
  const stages = buildStages(log);
  for (const one of [expert, head]) {
    stages.prepareUnit(one);
    stages.adoptShard(stages.partitions.find(({ unit: own }) => own === one) as Partition);
    stages.acquire(one);
    stages.release(one);
    stages.reduce(one, null);
    stages.conclude(one, { receiveReduced: () => void log.push(`received ${one.name}`) });
  }
  stages.publish(stages.partitions[1] as Partition, null as never);
  expect(log).toEqual([
    'few prepareUnit expert',
    'few adoptShard part of expert',
    'few acquire expert',
    'few release expert',
    'few reduce part of expert',
    'received expert',
    'all prepareUnit head',
    'all adoptShard part of head',
    'all acquire head',
    'all release head',
    'all reduce part of head',
    'few publish part of expert',
  ]);
});

test('step calls go to all flows, weights before gradients at the end of backward', () => {
  const log: string[] = [];
  const stages = buildStages(log);
  stages.flush();
  stages.dispatch();
  expect(log).toEqual([
    'all endBackward',
    'all flush',
    'few endBackward',
    'few flush',
    'all dispatch',
    'few dispatch',
  ]);
});

test.each([
  [{ factor: 2 }, 'one gradient factor for all stages of a model, got 1 and 2'],
  [{ isSharded: true }, 'one sharding for all stages of a model, got false and true'],
])('stages that disagree are refused: %j', (other, message) => {
  const one = stageOf('all', [head]);
  const two = stageOf('few', [expert], other);
  expect(() => new ZeroStages([expert, head], [one, two])).toThrow(message);
});

test('without stages, no weights are sharded', () => {
  const { shardsWeights, gradientFactor, slotBytes, partitions } = new ZeroStages([], []);
  expect({ shardsWeights, gradientFactor, slotBytes, partitions }).toEqual({
    shardsWeights: false,
    gradientFactor: 1,
    slotBytes: 0,
    partitions: [],
  });
});

test('stages have the common factor and sharding of their flows, and the slots of all', () => {
  const options = { factor: 3, isSharded: true };
  const stages = [stageOf('all', [head], options), stageOf('few', [expert], options)];
  for (const [i, { weights }] of stages.entries()) Object.assign(weights, { slotBytes: i * 5 });
  Object.assign((stages[0] as ZeroStage).weights, { slotBytes: undefined });
  const { shardsWeights, gradientFactor, slotBytes } = new ZeroStages([expert, head], stages);
  expect([shardsWeights, gradientFactor, slotBytes]).toEqual([true, 3, 5]);
});

test('gradients of a micro-batch stay in a unit that is reduced once a step', () => {
  const log: string[] = [];
  const stages = buildStages(log);
  stages.reduce(head, null);
  stages.reduce(expert, null);
  const receiver = { receiveReduced: () => {} };
  stages.reduce(head, receiver);
  expect(log).toEqual(['few reduce part of expert', 'all reduce part of head']);
});

test('destroyed stages free flows, buckets and shards', () => {
  const log: string[] = [];
  const stages = buildStages(log);
  const disposed: string[] = [];
  for (const partition of stages.partitions) {
    partition.dispose = () => void disposed.push(partition.unit.name);
  }
  stages.dispose();
  expect(log).toEqual(['all dispose', 'all dispose', 'few dispose', 'few dispose']);
  expect(disposed.sort()).toEqual(['attention', 'expert', 'head']);
});

test('frozen units have shards of their own, and no gradient', () => {
  const log: string[] = [];
  const frozen = unit('frozen');
  const stage = { ...stageOf('all', [head], { log }), frozen: [frozen] } as ZeroStage;
  const stages = new ZeroStages([head], [stage]);
  expect(stages.frozen.map(({ unit: own }) => own)).toEqual([frozen]);
  expect(stages.partitions).toHaveLength(1);
  stages.acquire(frozen);
  expect(log).toEqual(['all acquire frozen']);
  expect(() => stages.reduce(frozen, null)).toThrow();
});
