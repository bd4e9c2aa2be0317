// When updated weights go to the other ranks: what the host has updated at once and beside compute, in any order of buckets.
import { resolveConfig } from '../../lib/config/index.js';
import { gradientBucket } from '../../lib/engine/setup/stage.js';
import { cpu } from '../../lib/runtime/device.js';
import { Event, Stream } from '../../lib/runtime/stream.js';
import type { At, Collectives } from '../../lib/zero/collectives.js';
import { untimedComm } from '../../lib/zero/exchange.js';
import type { WeightPart } from '../../lib/zero/partition.js';
import { PublishedWeights } from '../../lib/zero/weight-flow.js';

const bucketOfAll = 1e9;

/** Flow of a group that writes down what it gathers; parts of it by name. */
function published() {
  const gathered: [purpose: string, besideCompute: boolean][] = [];
  const group = {
    allGather: (_output: unknown, _input: unknown, { stream, purpose }: At) => {
      gathered.push([purpose, stream !== cpu().compute]);
      return { wait: () => {} };
    },
  } as unknown as Collectives;
  const options = { bucketElements: bucketOfAll, overlap: false, timer: untimedComm };
  const flow = new PublishedWeights(cpu(), group, options);
  const part = (name: string) =>
    ({ unit: { name, layout: { numel: 8 } } }) as unknown as WeightPart;
  return { flow, gathered, part };
}

test('a unit that the host has updated goes at once, beside compute, and is waited for alone', () => {
  const { flow, gathered, part } = published();
  const host = Stream.create(cpu());
  const [first, last, own] = ['first', 'last', 'own'].map(part) as [
    WeightPart,
    WeightPart,
    WeightPart,
  ];
  const changed = new Event(cpu()).record(host);
  const waits = jest.spyOn(Stream.prototype, 'wait');
  flow.publish(first, host, changed);
  expect(waits.mock.calls.map(([event]) => event)).toContain(changed);
  waits.mockRestore();
  flow.publish(last, host);
  flow.publish(own, cpu().compute);
  const beside = [
    ['weights of first', true],
    ['weights of last', true],
  ];
  expect(gathered).toEqual(beside);
  flow.acquire(first.unit);
  expect(gathered).toEqual(beside);
  flow.acquire(own.unit);
  expect(gathered).toEqual([...beside, ['weights of own', false]]);
  flow.dispose();
  changed.dispose();
  host.dispose();
});

test('gradients that the host waits for are reduced unit by unit', () => {
  const configOf = (device: 'cpu' | 'none') =>
    resolveConfig(
      {
        train_micro_batch_size_per_gpu: 1,
        optimizer: { type: 'AdamW' },
        bf16: { enabled: true },
        zero_optimization: { stage: 2, reduce_bucket_size: 77, offload_optimizer: { device } },
      },
      { worldSize: 2 },
    );
  expect(gradientBucket(configOf('none'))).toBe(77);
  expect(gradientBucket(configOf('cpu'))).toBe(0);
});
