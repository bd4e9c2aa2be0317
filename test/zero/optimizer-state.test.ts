// Tests how partitions are divided into shares, and that shares update without waiting for each
// other.

import { selectEvenly, selectFirst } from '../../lib/engine/setup/optimizer-state.js';
import type { Tensor } from '../../lib/tensor/index.js';
import { OptimizerState } from '../../lib/zero/optimizer-state.js';
import type { Partition } from '../../lib/zero/partition.js';
import type { ShardState } from '../../lib/zero/state/shard-state.js';
import type { Schedule } from '../../lib/zero/state/strategies.js';

test('every share enqueues work without the step decision first, and all work in forward order', () => {
  const done: string[] = [];
  const state = new OptimizerState();
  const units = ['h0', 'h1', 'h2', 'h3'];
  const partitions = units.map((name) => ({ name }) as unknown as Partition);
  const nameOf = (partition: Partition): string => units[partitions.indexOf(partition)] as string;
  ['streamed', 'host'].forEach((name, turn) => {
    const own = partitions.filter((_, i) => i % 2 === turn);
    const schedule = {
      adopt: () => {},
      endBackward: () => done.push(`${name}: tried weights leave`),
      begin: (partition: Partition) => done.push(`${name}: tries out ${nameOf(partition)}`),
      *update() {
        done.push(`${name}: waits for the step decision`);
        for (const partition of own) yield [partition, null];
      },
    } as unknown as Schedule;
    const stored = { adopt: () => {} } as unknown as ShardState;
    state.add({ partitions: own, state: stored, schedule });
  });
  for (const partition of partitions) state.adopt(partition);
  const published: string[] = [];
  const publisher = { publish: (partition: Partition) => published.push(nameOf(partition)) };
  state.update({} as Tensor, {} as never, publisher);
  expect(done).toEqual([
    'streamed: tried weights leave',
    'host: tried weights leave',
    'streamed: tries out h0',
    'host: tries out h1',
    'streamed: tries out h2',
    'host: tries out h3',
    'streamed: waits for the step decision',
    'host: waits for the step decision',
  ]);
  expect(published).toEqual(units);
});

const partitionsOf = (sizes: readonly number[]) =>
  sizes.map((numel) => ({ numel }) as unknown as Partition);
const ten: readonly number[] = Array(10).fill(64);

test.each<[sizes: readonly number[], share: number, chosen: number[]]>([
  [ten, 0, []],
  [ten, 0.5, [0, 2, 4, 6, 8]],
  [ten, 0.25, [0, 4, 8]],
  [[128, ...ten], 0.5, [0, 3, 5, 7, 9]],
  [ten, 1, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]],
  [[1000, 64, 64, 64], 0.1, [1, 2]],
  [[], 0.5, []],
])(
  'of units of %j elements, the device updates %d of the state: units %j',
  (sizes, share, units) => {
    const all = partitionsOf(sizes);
    const chosen = selectEvenly(all, share);
    expect([...chosen].map((one) => all.indexOf(one))).toEqual(units);
  },
);

test.each<[sizes: readonly number[], share: number, chosen: number[]]>([
  [ten, 0, []],
  [ten, 0.3, [0, 1, 2]],
  [ten, 0.39, [0, 1, 2]],
  [ten, 1, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]],
  // A unit that does not fit ends the selection, even if a later one would fit.
  [[64, 512, 64], 0.2, [0]],
  [[512, 64], 0.5, []],
])(
  'of units of %j elements, %d of the state stays on the device: units %j',
  (sizes, share, units) => {
    const all = partitionsOf(sizes);
    const chosen = selectFirst(all, share);
    expect([...chosen].map((one) => all.indexOf(one))).toEqual(units);
  },
);

describe('update groups of optimizer state', () => {
  const partitionOf = (name: string) => ({ name }) as unknown as Partition;

  /** Two shares with a partition each; the second has no optional method. */
  function share() {
    const log: unknown[] = [];
    const say =
      (what: string, result?: unknown) =>
      (...given: unknown[]) => {
        log.push([what, ...given]);
        return result;
      };
    const [a, b] = [partitionOf('a'), partitionOf('b')];
    const stateOf = (name: string) => ({
      adopt: say(`${name} adopt`),
      receive: say(`${name} receive`),
      lendsCopies: name === 'one',
      writeMaster: say(`${name} write`),
      refresh: say(`${name} refresh`),
      awaitWeights: say(`${name} awaitWeights`),
      gradOf: say(`${name} gradOf`, name),
      lend: say(`${name} lend`, name),
      synchronize: say(`${name} synchronize`),
      bytes: { device: 1, host: 2, disk: 3 },
      deviceMemory: { masters: [`${name} master`], states: [`${name} state`] },
    });
    const full = {
      adopt: say('adopt'),
      prepare: say('prepare'),
      gradReady: say('gradReady'),
      awaitWeights: say('awaitWeights'),
      gradOf: say('gradOf', 'own'),
      commit: say('commit'),
      markChanged: say('changed'),
      resync: say('resync'),
      needsResync: true,
      rankErrors: () => ['error'],
      bytes: { device: 10, host: 20 },
    };
    const state = new OptimizerState();
    const add = (partition: Partition, name: string, schedule: object): void =>
      state.add({
        partitions: [partition],
        state: stateOf(name) as unknown as ShardState,
        schedule: schedule as Schedule,
      });
    add(a, 'one', full);
    add(b, 'two', {});
    const callsOf = (act: () => unknown): unknown[] => {
      act();
      return log.splice(0);
    };
    return { state, a, b, callsOf };
  }

  test('get the calls of their partitions', () => {
    const { state, a, b, callsOf } = share();
    for (const [partition, name] of [
      [a, 'one'],
      [b, 'two'],
    ] as const) {
      const own = (...calls: unknown[][]): unknown[][] => (name === 'one' ? calls : []);
      expect(callsOf(() => state.adopt(partition))).toEqual([
        [`${name} adopt`, partition],
        ...own(['adopt', partition]),
      ]);
      expect(callsOf(() => state.gradReady(partition))).toEqual([
        [`${name} receive`, partition],
        ...own(['gradReady', partition]),
      ]);
      expect(callsOf(() => state.awaitWeights(partition))).toEqual([
        ...own(['awaitWeights', partition]),
        [`${name} awaitWeights`, partition],
      ]);
      expect(callsOf(() => state.writeMaster(partition, 1 as never, 2 as never))).toEqual([
        [`${name} write`, partition, 1, 2],
      ]);
      expect(callsOf(() => state.lend(partition, 1 as never, 'm'))).toEqual([
        ...own(['commit']),
        [`${name} lend`, partition, 1, 'm'],
      ]);
      expect(callsOf(() => state.refresh(partition))).toEqual([
        ...own(['changed']),
        [`${name} refresh`, partition],
      ]);
      expect(callsOf(() => state.markChanged(partition))).toEqual(own(['changed']));
      expect(state.lendsCopies(partition)).toBe(name === 'one');
      expect(state.gradOf(partition)).toBe(name === 'one' ? 'own' : 'two');
      callsOf(() => {});
    }
    // Frozen shards have no share.
    expect(callsOf(() => state.awaitWeights(partitionOf('frozen')))).toEqual([]);
    expect(() => state.lend(partitionOf('frozen'), 1 as never, 'm')).toThrow();
  });

  test('add up', () => {
    const { state, callsOf } = share();
    expect(callsOf(() => state.prepare('plan' as never))).toEqual([['prepare', 'plan']]);
    expect(callsOf(() => state.resync(3, 'to' as never))).toEqual([['resync', 3, 'to']]);
    expect(callsOf(() => state.synchronize())).toEqual([
      ['commit'],
      ['one synchronize'],
      ['two synchronize'],
    ]);
    expect(state.needsResync).toBe(true);
    expect(new OptimizerState().needsResync).toBe(false);
    expect(state.rankErrors()).toEqual(['error']);
    expect(state.bytes).toEqual({ device: 12, host: 24, disk: 6 });
    expect(state.deviceMemory).toEqual({
      masters: ['one master', 'two master'],
      states: ['one state', 'two state'],
    });
  });
});
