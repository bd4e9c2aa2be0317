// Tests that parts of the optimizer state update concurrently without waiting for each other.
import type { Tensor } from '../../lib/tensor/index.js';
import type { Home } from '../../lib/zero/home/home.js';
import { OptimizerState } from '../../lib/zero/optimizer-state.js';
import type { Partition } from '../../lib/zero/partition.js';
import type { Schedule } from '../../lib/zero/schedule/schedule.js';

test('every share enqueues what needs no step decision before one waits for it, and all in forward order', () => {
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
    const home = { adopt: () => {} } as unknown as Home;
    state.add({ partitions: own, home, schedule });
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
