// Metrics of training steps: means over micro-batches, in logs, reports and the run's history.
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { ProcessGroup } from '../../lib/comm/index.js';
import { dpo, type LogEvent, nn, seed, Tensor, Trainer, text } from '../../lib/index.js';
import { cpu } from '../../lib/runtime/device.js';
import { meanOf, StepMetrics } from '../../lib/trainer/step-metrics.js';

const alone = { size: 1, device: cpu() } as ProcessGroup;

test('means are over all values since the last fetch', () => {
  const metrics = new StepMetrics(alone);
  expect(metrics.read()).toEqual({});
  const add = (a: number[], c: number): void =>
    metrics.add({
      a: meanOf(Tensor.from(a)),
      b: { sum: 3, count: a.length },
      c: { sum: 1, count: Tensor.from(c) },
    });
  add([1, 2], 4);
  add([6], 4);
  metrics.fetch();
  add([100], 2);
  expect(metrics.read()).toEqual({ a: 3, b: 2, c: 0.25 });
  expect(metrics.read()).toEqual({});
  metrics.fetch();
  expect(metrics.read()).toEqual({ a: 100, b: 3, c: 0.5 });
  add([1], 1);
  metrics.reset();
  add([2], 1);
  metrics.fetch();
  expect(metrics.read()).toEqual({ a: 2, b: 3, c: 1 });
  metrics.dispose();
});

const tokenizer = text.Tokenizer.fromPretrained(
  join('test', 'golden', 'transformers', 'tokenizers', 'llama2'),
);
const rows = Array.from({ length: 12 }, (_, i) => ({
  prompt: `The rank ${i} is`,
  chosen: ' ready',
  rejected: i % 3 ? ' lost' : ' not here',
}));

test('a method logs its metrics: in events, history, and reports', async () => {
  const dir = mkdtempSync(join(tmpdir(), 'ds-step-metrics-'));
  const modelOf = () => {
    seed(3);
    const sizes = { layers: 1, heads: 2, channels: 16, hidden: 32, maxSeq: 32 };
    return new nn.models.Llama({ ...sizes, vocabSize: tokenizer.vocabSize });
  };
  const trainer = new Trainer({
    model: modelOf(),
    tokenizer,
    train: await text.PairDataset.open({ tokenizer, rows }),
    method: dpo({ reference: modelOf() }),
    batchSize: 2,
    accumulation: 2,
    epochs: 1,
    lr: 1e-2,
    device: 'cpu',
    progress: false,
    log: { every: 2 },
    save: { dir },
    report: ['csv'],
    stopSignals: [],
  });
  const logs: LogEvent[] = [];
  for await (const event of trainer.train()) if (event.type === 'log') logs.push(event);
  const { history } = await trainer.state();
  await trainer.destroy();
  // Three updates: a log after two, and the rest at the end.
  expect(logs.map(({ step }) => step)).toEqual([2, 3]);
  for (const { metrics } of logs) {
    const { 'rewards/chosen': w, 'rewards/rejected': l, 'rewards/margins': margin } = metrics;
    expect(margin).toBeCloseTo((w as number) - (l as number), 5);
    expect(metrics['logps/chosen']).toBeLessThan(0);
  }
  expect(logs[1]?.metrics['rewards/accuracies']).toBe(1);
  expect(history.filter((item) => 'rewards/margins' in item).length).toBe(2);
  const files = readdirSync(join(dir, 'runs'), { recursive: true }).map(String);
  const margins = files.find((name) => name.endsWith('margins.csv')) as string;
  const lines = readFileSync(join(dir, 'runs', margins), 'utf8')
    .trim()
    .split('\n');
  expect(lines.length).toBeGreaterThanOrEqual(2);
  rmSync(dir, { recursive: true });
});
