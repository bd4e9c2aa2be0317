// Tests every family in every way to train and to keep a model, by one list of ways. A new family
// needs no line here: the folders of golden values are the rows. Two ranks train some families.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type DsConfig, initialize, nn, peft } from '../../lib/index.js';
import { cpu } from '../../lib/runtime/device.js';
import { noGrad } from '../../lib/tensor/index.js';
import { reportsOf, runRanks } from '../comm/ranks.js';
import { greedyTexts } from '../support/greedy-texts.js';
import { batchOf, FAMILIES, familyModel, STEPS, trainingConfig } from './family-rows.js';
import type { MatrixJob, MatrixReport } from './matrix-process.js';
import { SPLIT_FAMILIES, traitsOf } from './split-families.js';

type Model = nn.models.CausalLM;

let home: string;
beforeAll(() => {
  home = mkdtempSync(join(tmpdir(), 'ds-matrix-'));
});
afterAll(() => rmSync(home, { recursive: true, force: true }));

async function engineOf(model: Model, more: Partial<DsConfig> = {}) {
  const { engine } = await initialize({ model, config: trainingConfig(more), device: 'cpu' });
  return engine;
}

type Trained = Awaited<ReturnType<typeof engineOf>>;

function stepsOf(engine: Trained, from: number, to: number): number[] {
  const losses: number[] = [];
  for (let i = from; i < to; ++i) {
    const [tokens, targets] = batchOf((engine.module as Model).vocabSize, i, cpu());
    const loss = engine.forward(tokens, targets);
    losses.push(loss.item());
    engine.backward(loss);
    engine.step();
    for (const tensor of [tokens, targets]) tensor.dispose();
  }
  return losses;
}

function logitsOf(model: Model): number[] {
  const [tokens, targets] = batchOf(model.vocabSize, 0, cpu());
  const logits = noGrad(() => model.call(tokens).contiguous());
  const values = logits.toArray();
  for (const tensor of [tokens, targets, logits]) tensor.dispose();
  return values;
}

const release = (model: Model): void => {
  for (const parameter of model.parameters()) parameter.dispose();
};

const baselines = new Map<string, number[]>();

/** Losses of one rank at stage 0. */
async function baseline(family: string): Promise<number[]> {
  const known = baselines.get(family);
  if (known) return known;
  const engine = await engineOf(await familyModel(family));
  const losses = stepsOf(engine, 0, STEPS);
  engine.destroy();
  baselines.set(family, losses);
  return losses;
}

function expectNear(got: readonly number[], expected: readonly number[], bound: number): void {
  expect(got.length).toBe(expected.length);
  got.forEach((value, i) => {
    expect(Math.abs(value - (expected[i] as number))).toBeLessThanOrEqual(
      bound * Math.max(1, Math.abs(expected[i] as number)),
    );
  });
}

describe.each(FAMILIES)('%s', (family) => {
  test('stage 3 with offload of weights and state trains as stage 0', async () => {
    const offload = { device: 'cpu' } as const;
    const zero = { stage: 3, offload_optimizer: offload, offload_param: offload } as const;
    const engine = await engineOf(await familyModel(family), { zero_optimization: zero });
    expect(stepsOf(engine, 0, STEPS)).toEqual(await baseline(family));
    engine.destroy();
  });

  test('recomputed activations give the same losses', async () => {
    const model = await familyModel(family, { activationCheckpointing: true });
    const engine = await engineOf(model);
    expect(stepsOf(engine, 0, STEPS)).toEqual(await baseline(family));
    engine.destroy();
  });

  test('a run that resumes continues with the same losses', async () => {
    const dir = join(home, `${family}-run`);
    const first = await engineOf(await familyModel(family));
    stepsOf(first, 0, 2);
    await first.saveCheckpoint(dir);
    first.destroy();
    const second = await engineOf(await familyModel(family));
    await second.loadCheckpoint(dir);
    expect(stepsOf(second, 2, STEPS)).toEqual((await baseline(family)).slice(2));
    second.destroy();
  });

  test('a saved folder gives the same logits and description', async () => {
    const dir = join(home, `${family}-saved`);
    const model = await familyModel(family);
    await model.save(dir);
    const read = await nn.models.fromPretrained(dir);
    expect(read.config).toEqual(model.config);
    expect(logitsOf(read)).toEqual(logitsOf(model));
    for (const one of [model, read]) release(one);
  });

  test('only adapters train, and they merge into the weights', async () => {
    const model = await familyModel(family);
    peft.addLora(model, { r: 2, loraAlpha: 8 });
    const before = logitsOf(model);
    const frozen = model.parameters().filter(({ requiresGrad }) => !requiresGrad);
    expect(frozen.length).toBeGreaterThan(0);
    const engine = await engineOf(model, { optimizer: { type: 'AdamW', params: { lr: 0.05 } } });
    const losses = Array.from({ length: 4 }, () => stepsOf(engine, 0, 1)[0] as number);
    engine.destroy();
    expect(losses.at(-1)).toBeLessThan(losses[0] as number);
    const after = logitsOf(model);
    expect(after).not.toEqual(before);
    peft.merge(model);
    expectNear(logitsOf(model), after, 1e-4);
    release(model);
  });

  test('8-bit weights give near logits, and the model generates text', async () => {
    const model = await familyModel(family);
    const before = logitsOf(model);
    nn.quantizeModel(model, { bits: 8, groupSize: null });
    const after = logitsOf(model);
    // Of mixtures, a few tokens may go to other experts.
    const mean = (values: readonly number[]): number =>
      values.reduce((sum, value) => sum + Math.abs(value), 0) / values.length;
    const differences = after.map((value, i) => value - (before[i] as number));
    expect(mean(differences)).toBeLessThan(0.1 * mean(before));
    expect(model.generate([5, 6, 7], { maxNewTokens: 3, temperature: 0 })).toHaveLength(6);
    release(model);
  });
});

const RECURRENT = /no recurrent layers, which need all tokens on each rank.*tensor_parallel/;
/** Traits that sequence parallelism refuses, and the error. */
const WHOLE_TOKENS: Readonly<Record<string, RegExp>> = {
  delta: RECURRENT,
  conv: RECURRENT,
  states: RECURRENT,
};

/** Traits that tensor parallelism over two ranks refuses, and the error. */
const ONE_KEY_HEAD: Readonly<Record<string, RegExp>> = {
  keyHeads: /at most 1 ranks for packed projections of 1 heads of keys and values/,
};

const refusalOf = (refusals: Readonly<Record<string, RegExp>>, family: string): RegExp | null =>
  Object.entries(refusals).find(([trait]) => traitsOf(family).has(trait))?.[1] ?? null;

describe('two ranks train families with every trait like one rank', () => {
  const ways: Record<string, MatrixJob> = {
    'tensor parallelism': {
      mesh: { tp: 2 },
      config: { tensor_parallel: { autotp_size: 2 } },
    },
    'tensor parallelism at ZeRO stage 3': {
      mesh: { tp: 2 },
      config: { tensor_parallel: { autotp_size: 2 }, zero_optimization: { stage: 3 } },
    },
    'sequence parallelism': { mesh: { sp: 2 }, config: { sequence_parallel_size: 2 } },
    'pipeline stages': { mesh: { pp: 2 }, config: { pipeline: { stages: 2 } } },
  };
  test.each(Object.entries(ways))('%s', async (_, job) => {
    const environment = { DEEPSPEED_TIMEOUT: '2' };
    const results = await runRanks('../models/matrix-process', 2, { job, environment });
    const reports = reportsOf<MatrixReport>(results);
    for (const family of SPLIT_FAMILIES) {
      const expected = await baseline(family);
      for (const report of reports) {
        const losses = report[family] ?? 'nothing';
        const { sp, tp } = job.mesh;
        const refusal = refusalOf(sp ? WHOLE_TOKENS : tp ? ONE_KEY_HEAD : {}, family);
        if (refusal) {
          expect(losses).toMatch(refusal);
          continue;
        }
        expect(`${family}: ${typeof losses === 'string' ? losses : ''}`).toBe(`${family}: `);
        expectNear(losses as number[], expected, 1e-5);
      }
    }
  });

  test('the families of two ranks have all traits of all families', () => {
    const covered = new Set(SPLIT_FAMILIES.flatMap((family) => [...traitsOf(family)]));
    const missing = FAMILIES.flatMap((family) =>
      [...traitsOf(family)].filter((trait) => !covered.has(trait)).map((name) => [family, name]),
    );
    // A family with a trait of its own belongs to split-families.ts.
    expect(missing).toEqual([]);
  });

  test('tensor-parallel inference writes the texts of transformers', async () => {
    const named = Object.entries(greedyTexts()).filter(([family]) =>
      SPLIT_FAMILIES.includes(family),
    );
    const prompts = Object.fromEntries(named.map(([family, [, text]]) => [family, text?.prompt]));
    const job = { mesh: { tp: 2 }, config: {}, prompts };
    const environment = { DEEPSPEED_TIMEOUT: '2' };
    const results = await runRanks('../models/matrix-process', 2, { job, environment });
    for (const report of reportsOf<MatrixReport>(results)) {
      for (const [family, [, text]] of named) {
        const refusal = refusalOf(ONE_KEY_HEAD, family);
        if (refusal) expect(report[family]).toMatch(refusal);
        else expect([family, report[family]]).toEqual([family, text?.tokens.slice(0, 24)]);
      }
    }
  });
});
