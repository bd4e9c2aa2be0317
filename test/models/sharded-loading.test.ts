// Tests pretrained weights at stage 3: each rank reads its shard, and training equals one with all
// weights in memory.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { initialize, nn, noGrad, seed, Tensor } from '../../lib/index.js';
import { reportsOf, runRanks } from '../comm/ranks.js';
import type { ShardedJob, ShardedReport } from './sharded-loading-process.js';

const { GPT2, Qwen3 } = nn.models;

let dir: string;
beforeAll(() => {
  dir = mkdtempSync(join(tmpdir(), 'ds-sharded-'));
});
afterAll(() => rmSync(dir, { recursive: true, force: true }));

const sizes = { vocabSize: 67, maxSeq: 16, layers: 3, heads: 4, channels: 32, hidden: 56 };

const run = async (ranks: number, job: ShardedJob): Promise<ShardedReport[]> =>
  reportsOf<ShardedReport>(await runRanks('../models/sharded-loading-process', ranks, { job }));

/** The result of one process with all values in memory; ranks with equal batches must match it. */
async function alone(model: nn.models.CausalLM, frozen: number): Promise<[number[], number]> {
  for (const parameter of model.parameters().slice(0, frozen)) parameter.requiresGrad = false;
  const row = Tensor.from(Int32Array.from([3, 1, 4, 1, 5, 9]), { shape: [1, 6] });
  const logits = noGrad(() => model.call(row).contiguous().toArray());
  const { engine } = await initialize({
    model,
    config: {
      train_micro_batch_size_per_gpu: 1,
      optimizer: { type: 'AdamW', params: { lr: 0.01 } },
    },
    device: 'cpu',
  });
  engine.backward(engine.forward<Tensor>(row, row));
  engine.step();
  const loss = engine.forward<Tensor>(row, row).item();
  engine.destroy();
  return [logits, loss];
}

const stage3 = { stage: 3, stage3_param_persistence_threshold: 0 } as const;

test.each<[string, number, number, ShardedJob['zero']]>([
  ['stage 3', 2, 0, stage3],
  ['three ranks, frozen embeddings and blocks', 3, 9, stage3],
  [
    'offloaded parameters and optimizer',
    2,
    0,
    { ...stage3, offload_param: { device: 'cpu' }, offload_optimizer: { device: 'cpu' } },
  ],
])(
  '%s: a rank reads each byte of its part of the files once',
  async (_name, ranks, frozen, zero) => {
    seed(4);
    const model = new Qwen3({ ...sizes, kvHeads: 2, headDim: 16, initializerRange: 0.2 });
    const home = join(dir, `${ranks}-${frozen}-${Object.keys(zero ?? {}).length}`);
    await nn.saveWeights(model, home, { maxShardBytes: 30_000 });
    const total = 4 * model.numParameters();
    const [logits, loss] = await alone(model, frozen);
    const reports = await run(ranks, { dir: home, frozen, zero });
    for (const report of reports) {
      expect(report.failure).toBe('');
      expect(report.logits).toEqual(logits);
      expect(Math.abs(report.loss - loss)).toBeLessThan(1e-5);
      // Units have equal shards; the last shard may hold fewer parameter elements.
      expect(report.read).toBeLessThan(1.02 * Math.ceil(total / ranks));
      expect(report.read).toBeGreaterThan((0.9 * total) / ranks);
    }
    const read = reports.reduce((sum, report) => sum + report.read, 0);
    expect(read).toBe(total);
  },
);

test('transposed weights and whole copies of units are loaded exactly', async () => {
  seed(5);
  const model = new GPT2({ vocabSize: 67, maxSeq: 8, layers: 2, heads: 2, channels: 32 });
  await nn.saveWeights(model, join(dir, 'gpt2'));
  const [logits, loss] = await alone(model, 0);
  for (const zero of [stage3, { stage: 2 }] as const) {
    const reports = await run(2, { dir: join(dir, 'gpt2'), frozen: 0, zero });
    for (const report of reports) {
      expect([report.failure, report.logits]).toEqual(['', logits]);
      expect(Math.abs(report.loss - loss)).toBeLessThan(1e-5);
    }
  }
});

test('ranks that read different files throw', async () => {
  const make = (vocabSize: number, name: string) =>
    nn.saveWeights(new GPT2({ vocabSize, maxSeq: 8, layers: 1, heads: 2, channels: 8 }), name, {
      dtype: name.endsWith('half') ? 'bf16' : 'fp32',
    });
  await make(31, join(dir, 'one'));
  await make(31, join(dir, 'half'));
  const job = { dir: join(dir, 'one'), frozen: 0, zero: stage3, others: { 1: join(dir, 'half') } };
  for (const { failure } of await run(2, job)) {
    expect(failure).toMatch(/bytes of weights, f32.* on rank 0.*bf16 on rank 1/);
  }
});
