// What a log says of updates whose sequences differ in length.
import { Device } from '../../lib/runtime/device.js';
import { Logbook, type LogbookOptions } from '../../lib/trainer/logbook.js';
import { TrainerState } from '../../lib/trainer/trainer-state.js';

/** A GPU of which nothing but its name is asked. */
const h100: Device = Object.create(Device.prototype, {
  kind: { value: 'cuda' },
  info: { value: { name: 'NVIDIA H100 80GB HBM3' } },
});
const PEAK = 989.4e12;

test('the share of the peak is that of the FLOPs since the last log, at every length', () => {
  const state = new TrainerState();
  const engine = {
    ...{ device: h100, globalRank: 1, worldSize: 2, skippedSteps: 0 },
    config: { bf16: { enabled: true }, fp16: { enabled: false } },
    getGlobalLoss: () => 1,
    getGlobalGradNorm: () => 1,
  };
  const settings = { progress: false, report: [], log: { every: 1, nanFilter: true } };
  const costOf = (sequence: number): number => 1e6 * sequence;
  const book = new Logbook({
    ...{ engine, settings, state, costOf, maxSteps: 9 },
  } as unknown as LogbookOptions);
  book.begin();
  const updates = [
    [4, 8],
    [16, 32],
    [64, 128],
  ] as const;
  const ratios: number[] = [];
  let tokens = 0;
  for (const [i, [sequence, read]] of updates.entries()) {
    book.read(tokens); // Those of the update before.
    book.enqueued({ step: i + 1, epoch: 0, lr: 1, isDue: i > 0 }, sequence);
    tokens += read;
    for (const event of book.settle()) {
      if (event.type !== 'log') continue;
      ratios.push(((event.mfu as number) * PEAK * engine.worldSize) / event.tokensPerSecond);
    }
  }
  expect(ratios).toEqual([4e6, 16e6].map((cost) => expect.closeTo(cost, 0)));
  book.read(tokens);
  expect(state.flops).toBe(8 * 4e6 + 32 * 16e6 + 128 * 64e6);
});
