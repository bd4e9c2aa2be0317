// On-policy distillation: steps of TRL with completions of the student or the teacher, resumption,
// and refusals. To record: DS_RECORD=DIR jest, then scripts/record-gkd.py DIR FILE.
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { gkd, nn, seed, Trainer, type TrainerEvent, type text } from '../../lib/index.js';
import { errorOf } from '../engine/offload-scenario.js';
import { weightsOf } from './tiny.js';

const CONFIG = JSON.parse(
  readFileSync('test/golden/transformers/models/qwen2/config.json', 'utf8'),
) as object;
const modelOf = (start: number): nn.models.CausalLM => {
  seed(start);
  return nn.models.fromConfig({ ...CONFIG, vocab_size: 128 } as never);
};
const prompts = Array.from({ length: 12 }, (_, i) =>
  Array.from({ length: 5 }, (_, t) => ((i * 7 + t * 13) % 120) + 3),
);

/** A row whose answer the sampled one replaces. */
function sampleOf(prompt: readonly number[], isPacked = false): text.TextSample {
  const ids = Int32Array.from([...prompt, 9, 9]);
  const labels = ids.map((id, i) => (i < prompt.length ? -100 : id));
  const documents = new Int32Array(ids.length);
  if (isPacked) documents.fill(1, 3);
  return { ids, labels, positions: ids.map((_, i) => i), documents };
}
const rows = (isPacked = false) => ({
  length: prompts.length,
  get: (i: number) => sampleOf(prompts[i] as number[], isPacked),
});

const trainerOf = (method: ReturnType<typeof gkd>, more: object = {}, isPacked = false) =>
  new Trainer({
    model: modelOf(7),
    train: rows(isPacked) as never,
    method,
    lr: 2e-3,
    batchSize: 4,
    maxSteps: 3,
    device: 'cpu',
    progress: false,
    stopSignals: [],
    log: { every: 1 },
    schedule: 'constant',
    weightDecay: 0,
    data: { sampling: 'sequential' },
    ...more,
  } as never);

const greedy = { maxNewTokens: 6, temperature: 1e-4 };
const cases = {
  student: () => gkd({ teacher: modelOf(9), lmbda: 1, ...greedy }),
  'student, reverse': () => gkd({ teacher: modelOf(9), lmbda: 1, beta: 1, ...greedy }),
  teacher: () => gkd({ teacher: modelOf(9), lmbda: 0, seqKd: true, ...greedy }),
};

test.each(Object.entries(cases))(
  'three steps of TRL: completions of the %s',
  async (name, make) => {
    const { DS_RECORD: folder } = process.env;
    if (folder) {
      mkdirSync(folder, { recursive: true });
      await modelOf(7).save(join(folder, 'student'));
      await modelOf(9).save(join(folder, 'teacher'));
      writeFileSync(join(folder, 'prompts.json'), JSON.stringify(prompts));
      return;
    }
    const recorded = JSON.parse(readFileSync('test/golden/trl-gkd.json', 'utf8')) as Record<
      string,
      { loss: number; grad_norm: number }[]
    >;
    const trainer = trainerOf(make());
    const logs: TrainerEvent[] = [];
    for await (const event of trainer.train()) if (event.type === 'log') logs.push(event);
    await trainer.destroy();
    recorded[name]?.forEach(({ loss, grad_norm }, i) => {
      const log = logs[i] as { loss: number; gradNorm: number };
      expect(Math.abs(log.loss - loss)).toBeLessThan(2e-4 * loss);
      expect(Math.abs(log.gradNorm - grad_norm)).toBeLessThan(1e-3 * grad_norm);
    });
    expect(recorded[name]?.length).toBe(3);
  },
);

test('a resumed run samples the same as an uninterrupted one', async () => {
  const dir = mkdtempSync(join(tmpdir(), 'ds-gkd-'));
  const method = () => gkd({ teacher: modelOf(9), lmbda: 0.6, seqKd: true, maxNewTokens: 4 });
  const more = { maxSteps: 5, save: { dir, every: 2 }, lr: 1e-2 };
  const fullTrainer = trainerOf(method(), { ...more, save: undefined });
  await fullTrainer.train();
  const engine = await fullTrainer.engine();
  const expected = weightsOf(engine.module);
  await fullTrainer.destroy();
  const first = trainerOf(method(), more);
  for await (const event of first.train()) if (event.type === 'save' && event.step === 2) break;
  await first.destroy();
  const second = trainerOf(method(), more);
  await second.train({ resume: true });
  expect(weightsOf((await second.engine()).module)).toEqual(expected);
  await second.destroy();
  rmSync(dir, { recursive: true });
});

test('evaluations use the answers of the rows', async () => {
  const trainer = trainerOf(gkd({ teacher: modelOf(9), lmbda: 1, ...greedy }), {
    eval: { data: rows() as never, every: 3 },
  });
  const found: TrainerEvent[] = [];
  for await (const event of trainer.train()) if (event.type === 'evaluate') found.push(event);
  await trainer.destroy();
  expect(found).toHaveLength(1);
});

test('packed rows, rows without a prompt and wrong options are refused', async () => {
  const method = gkd({ teacher: modelOf(9), lmbda: 1 });
  const packed = trainerOf(method, {}, true);
  expect(await errorOf(() => packed.train())).toMatch(/gkd lmbda: expected one document/);
  await packed.destroy();
  const bare = trainerOf(gkd({ teacher: modelOf(9), lmbda: 1 }), {
    train: { length: 4, get: () => sampleOf([]) },
  });
  expect(await errorOf(() => bare.train())).toMatch(/gkd lmbda: expected a prompt before/);
  await bare.destroy();
  expect(() => gkd({ teacher: modelOf(9), lmbda: 2 })).toThrow(/gkd lmbda/);
  const sharded = trainerOf(gkd({ teacher: modelOf(9), lmbda: 0, seqKd: true }), {
    deepspeed: { zero_optimization: { stage: 3 } },
  });
  expect(await errorOf(() => sharded.train())).toMatch(/gkd seqKd: expected ZeRO stage 2/);
  await sharded.destroy();
});
