// References of dpo(): ZeRO stages, dtypes, 4 bits, syncs and numbers computed before training.
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import {
  type DpoOptions,
  dpo,
  peft,
  precomputeReference,
  type Tensor,
  type TrainerOptions,
  text,
} from '../../lib/index.js';
import { Reference } from '../../lib/trainer/methods/reference.js';
import { refusal } from '../support/refusal.js';
import { modelOf, pairRows, tokenizer, trainAnswers } from './answers.js';

let pairs: text.PairDataset;
beforeAll(async () => {
  pairs = await text.PairDataset.open({ tokenizer, rows: pairRows.slice(0, 12), length: 32 });
});

async function losses(
  method: DpoOptions,
  options: Partial<TrainerOptions> = {},
  train = pairs,
): Promise<number[]> {
  const common = { model: modelOf(), train: train as never, maxSteps: 3 };
  const { logs } = await trainAnswers({ ...common, ...options, method: dpo(method) });
  return logs.map(({ loss }) => loss);
}

const zero = (zero_optimization: object, more: object = {}) => ({
  deepspeed: { zero_optimization, ...more } as NonNullable<TrainerOptions['deepspeed']>,
});

test('losses are the same at stage 3, with and without offload', async () => {
  const plain = await losses({ reference: modelOf() });
  expect(plain[0]).toBeCloseTo(Math.LN2, 6);
  expect(plain[2]).toBeLessThan(Math.LN2);
  for (const more of [{}, { offload_param: { device: 'cpu' } }]) {
    const sharded = await losses({ reference: modelOf() }, zero({ stage: 3, ...more }));
    sharded.forEach((loss, i) => void expect(loss).toBeCloseTo(plain[i] as number, 5));
  }
});

test('methods train without dropout, unless it is wanted', async () => {
  const makeAdapted = () =>
    peft.addLora(modelOf(), { r: 4, loraDropout: 0.5, initLoraWeights: false });
  const run = (disableDropout: boolean) =>
    losses({ disableDropout, beta: 1 }, { model: makeAdapted(), lr: 0 });
  const judged = makeAdapted();
  const [quiet, noisy] = [await run(true), await run(false)];
  expect(quiet).toEqual(await losses({ beta: 1 }, { model: judged, lr: 0, seed: 1 }));
  expect(noisy[0]).not.toBeCloseTo(quiet[0] as number, 4);
  // The layers are in the mode of the model again.
  expect(new Set(judged.modules().map(({ training }) => training)).size).toBe(1);
});

test('the reference has the dtype of the training: the first loss is ln 2', async () => {
  for (const stage of [0, 3]) {
    const [first] = await losses(
      { reference: modelOf() },
      zero({ stage }, { bf16: { enabled: true } }),
    );
    expect(first).toBeCloseTo(Math.LN2, 6);
  }
});

test.each([0, 3])('a reference in 4 bits, at stage %i', async (stage) => {
  const reference = peft.quantize(modelOf());
  const all = await losses({ reference }, zero({ stage }));
  expect(all.every(Number.isFinite)).toBe(true);
  expect(Math.abs((all[0] as number) - Math.LN2)).toBeLessThan(0.2);
});

test('syncRefModel mixes the weights of model and reference', async () => {
  const [model, reference, before] = [modelOf(5), modelOf(6), modelOf(6)];
  new Reference('dpo', model, reference).follow({ steps: 1, alpha: 0.6 });
  const [own, old] = [new Map(model.namedParameters()), new Map(before.namedParameters())];
  for (const [name, mixed] of reference.namedParameters()) {
    const expected = (own.get(name) as Tensor).mul(0.6).add((old.get(name) as Tensor).mul(0.4));
    expect(mixed.sub(expected).abs().max().item()).toBeLessThan(1e-6);
  }
  const method = { syncRefModel: true, refModelSyncSteps: 1, refModelMixupAlpha: 1 };
  // The reference equals the model before each update.
  for (const loss of await losses({ ...method, reference: modelOf() })) {
    expect(loss).toBeCloseTo(Math.LN2, 5);
  }
  expect(() => dpo({ syncRefModel: true })).toThrow(/dpo syncRefModel/);
  const sharded = await refusal(() =>
    losses({ ...method, reference: modelOf() }, zero({ stage: 3 })),
  );
  expect(sharded.message).toMatch(/dpo syncRefModel: expected ZeRO stage 2 or lower, got stage 3/);
});

test('precomputed numbers equal those of a second model, and are kept', async () => {
  const dir = mkdtempSync(join(tmpdir(), 'ds-precomputed-'));
  const cache = join(dir, 'new', 'numbers.json');
  const known = precomputeReference(pairs, modelOf(), { batchSize: 5, cache });
  expect(known.hasReference).toBe(true);
  expect(pairs.hasReference).toBe(false);
  const plain = await losses({ reference: modelOf() });
  const numbers = await losses({}, {}, known);
  numbers.forEach((loss, i) => void expect(loss).toBeCloseTo(plain[i] as number, 5));
  const kept = JSON.parse(readFileSync(cache, 'utf8')) as { key: string; numbers: number[][] };
  const marked = kept.numbers.map(() => [-1, -2]);
  writeFileSync(cache, JSON.stringify({ ...kept, numbers: marked }));
  expect(precomputeReference(pairs, modelOf(), { cache }).get(0).reference).toEqual([-1, -2]);
  // Other weights, and a damaged file, are computed again.
  const other = precomputeReference(pairs, modelOf(8), { cache }).get(0).reference;
  expect(other).not.toEqual([-1, -2]);
  writeFileSync(cache, '{');
  expect(precomputeReference(pairs, modelOf(8), { cache }).get(0).reference).toEqual(other);
  // Another file is left as it is; so is a folder.
  const rows = join(dir, 'rows.jsonl');
  writeFileSync(rows, '{"prompt": "a"}');
  for (const foreign of [rows, dir]) {
    expect(() => precomputeReference(pairs, modelOf(), { cache: foreign })).toThrow(
      /precomputeReference cache: expected/,
    );
  }
  expect(readFileSync(rows, 'utf8')).toBe('{"prompt": "a"}');
  expect(() => precomputeReference(pairs, modelOf(), { cache: join(rows, 'x', 'y') })).toThrow(
    expect.objectContaining({ code: 'DS_IO' }),
  );
  rmSync(dir, { recursive: true });
  expect(() => pairs.withReference([])).toThrow(/numbers of 12 pairs, got 0/);
  expect(() => precomputeReference(pairs, {} as never)).toThrow(/precomputeReference reference/);
});
