// Tests that training with curriculum_learning equals training on batches that were truncated by
// hand.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { resolveConfig } from '../../lib/config/index.js';
import { curriculumOf } from '../../lib/engine/step/curriculum.js';
import {
  type DsConfig,
  type Engine,
  initialize,
  linear,
  nn,
  noGrad,
  PipelineModule,
  seed,
  Tensor,
} from '../../lib/index.js';
import { refusal } from '../support/refusal.js';
import { weightsOf } from '../trainer/tiny.js';

type Section = NonNullable<DsConfig['curriculum_learning']>;

const [ROWS, TOKENS, VOCABULARY] = [3, 12, 41];

/** 3 + 1.5 step, rounded down to even numbers: 4.5, 6, 7.5, 9, 10.5, 12. */
const section: Section = {
  enabled: true,
  curriculum_type: 'seqlen',
  min_difficulty: 3,
  max_difficulty: 12,
  schedule_type: 'fixed_linear',
  schedule_config: { total_curriculum_step: 6, difficulty_step: 2 },
};
const LENGTHS = [4, 6, 6, 8, 10, 12, 12, 12];

const discrete = (difficulty: number[], max_step: number[], max = 12): Section => ({
  enabled: true,
  min_difficulty: 4,
  max_difficulty: max,
  schedule_type: 'fixed_discrete',
  schedule_config: { difficulty, max_step },
});
const custom: Section = {
  enabled: true,
  min_difficulty: 4,
  max_difficulty: 12,
  schedule_type: 'custom',
};

function gpt2(): nn.models.GPT2 {
  seed(5);
  const sizes = { vocabSize: VOCABULARY, maxSeq: TOKENS, layers: 1, heads: 2, channels: 16 };
  return new nn.models.GPT2({ ...sizes, dropout: 0.1 });
}

const config = (curriculum_learning: Section | undefined, more: DsConfig = {}): DsConfig => ({
  train_micro_batch_size_per_gpu: ROWS,
  optimizer: { type: 'AdamW', params: { lr: 1e-2 } },
  ...(curriculum_learning ? { curriculum_learning } : {}),
  ...more,
});

const open: Engine[] = [];
afterEach(() => {
  for (const engine of open.splice(0)) engine.destroy();
});

async function engineOf(
  curriculum: Section | undefined,
  { model = gpt2() as nn.Module, more = {} as DsConfig } = {},
): Promise<Engine> {
  const { engine } = await initialize({ model, config: config(curriculum, more), device: 'cpu' });
  open.push(engine);
  return engine;
}

/** The inputs of a step: tokens, targets and documents, the first `length` of each row. */
function batch(step: number, length = TOKENS) {
  const rows = (make: (row: number, at: number) => number): Tensor => {
    const values = Array.from({ length: ROWS }, (_, row) =>
      Array.from({ length }, (__, at) => make(row, at)),
    );
    return Tensor.from(Int32Array.from(values.flat()), { shape: [ROWS, length] });
  };
  const token = (row: number, at: number): number => (7 * step + 11 * row + at * at) % VOCABULARY;
  return {
    tokens: rows(token),
    targets: rows((row, at) => ((at + row + step) % 5 === 0 ? -100 : token(row, at + 1))),
    documents: rows((row, at) => Math.floor((at + row) / 5)),
  };
}

/** Losses of the next `steps` updates. */
function train(engine: Engine, steps: number, lengthOf: (step: number) => number): number[] {
  const losses: number[] = [];
  const last = engine.globalSteps + steps;
  while (engine.globalSteps < last) {
    const step = engine.globalSteps;
    const { tokens, targets, documents } = batch(step, lengthOf(step));
    const loss = engine.forward(tokens, targets, { documents });
    losses.push(loss.item());
    engine.backward(loss);
    engine.step();
  }
  engine.synchronize();
  return losses;
}

const whole = () => TOKENS;
const cut = (step: number): number => LENGTHS[step] as number;

test('steps train on the first tokens of each sample, with targets, documents and dropout', async () => {
  const engine = await engineOf(section);
  const byHand = await engineOf(undefined);
  const lengths: (number | null)[] = [];
  for (let step = 0; step < LENGTHS.length; ++step) {
    lengths.push(engine.curriculumSeqlen);
    seed(step);
    const losses = train(engine, 1, whole);
    seed(step);
    expect(losses).toEqual(train(byHand, 1, cut));
  }
  expect(lengths).toEqual(LENGTHS);
  expect(byHand.curriculumSeqlen).toBeNull();
  expect(weightsOf(engine.module)).toEqual(weightsOf(byHand.module));
});

test('all micro-batches of a global step have the same length', async () => {
  const engine = await engineOf(section, { more: { gradient_accumulation_steps: 2 } });
  const lengths: number[] = [];
  for (let micro = 0; micro < 8; ++micro) {
    const { tokens } = batch(micro);
    const logits = engine.forward(tokens);
    lengths.push(logits.size(1));
    engine.backward(logits.to('f32').mean());
    engine.step();
  }
  expect(lengths).toEqual([4, 4, 6, 6, 6, 6, 8, 8]);
});

test('evaluation sees all tokens, and shorter batches stay as they are', async () => {
  const engine = await engineOf(section);
  const { tokens } = batch(0);
  engine.eval();
  expect(noGrad(() => engine.forward(tokens)).shape.slice(0, 2)).toEqual([ROWS, TOKENS]);
  engine.train();
  expect(engine.forward(tokens).size(1)).toBe(4);
  expect(engine.forward(batch(0, 3).tokens).size(1)).toBe(3);
});

describe('a model of the caller', () => {
  class Own extends nn.Module {
    readonly table = new nn.Embedding(VOCABULARY, 8);
    override forward(tokens: Tensor): Tensor {
      return linear(this.table.call(tokens), this.table.weight).mean();
    }
  }

  test('is refused in every step if the program does not read the sample length', async () => {
    const engine = await engineOf(section, { model: new Own() });
    const error = await refusal(() => engine.forward(batch(0).tokens));
    expect(error).toMatchObject({ code: 'DS_CONFIG', op: 'engine.forward, curriculum_learning' });
    expect((error as Error).message).toMatch(
      /Own without shortenInputs.*engine\.curriculumSeqlen/s,
    );

    const step = () => {
      const { tokens } = batch(0);
      const short = tokens.narrow(1, 0, engine.curriculumSeqlen as number);
      engine.backward(engine.forward(short));
      engine.step();
    };
    step();
    expect(await refusal(() => engine.forward(batch(1).tokens))).toMatchObject({
      code: 'DS_CONFIG',
    });
    step();
    engine.eval();
    expect(noGrad(() => engine.forward(batch(1).tokens)).numel).toBe(1);
  });

  test('may shorten its inputs itself', async () => {
    const seen: number[] = [];
    class Shortening extends Own {
      shortenInputs([tokens]: readonly unknown[], seqlen: number): unknown[] {
        seen.push(seqlen);
        return [(tokens as Tensor).narrow(1, 0, seqlen)];
      }
    }
    const engine = await engineOf(section, { model: new Shortening() });
    for (let step = 0; step < 3; ++step) {
      engine.backward(engine.forward(batch(step).tokens));
      engine.step();
    }
    expect(seen).toEqual(LENGTHS.slice(0, 3));
  });

  test('a pipeline checks its batches in the same way', async () => {
    const model = new PipelineModule({
      layers: [new nn.Embedding(VOCABULARY, 8), new nn.Linear(8, VOCABULARY)],
      lossFn: (logits: Tensor) => logits.mean(),
    });
    const { engine } = await initialize({ model, config: config(section), device: 'cpu' });
    open.push(engine);
    const batches = (function* () {
      for (;;) yield [batch(0).tokens, batch(0).targets];
    })();
    expect(await refusal(() => engine.trainBatch(batches))).toMatchObject({
      code: 'DS_CONFIG',
      op: 'engine.trainBatch, curriculum_learning',
    });
    const short = (function* () {
      for (;;) yield [batch(0, engine.curriculumSeqlen as number).tokens, null];
    })();
    await engine.trainBatch(short);
    expect(engine.globalSteps).toBe(1);
  });
});

test('a pipeline trains on the first tokens, and is judged on all', async () => {
  const engines = [];
  for (const [curriculum, lengthOf] of [
    [section, whole],
    [undefined, cut],
  ] as const) {
    const more = { pipeline: { stages: 1 }, gradient_accumulation_steps: 2 } as const;
    const options = { ...config(curriculum), ...more };
    const { engine } = await initialize({ model: gpt2(), config: options, device: 'cpu' });
    open.push(engine);
    const batches = (length: (step: number) => number) =>
      (function* () {
        for (;;) {
          const { tokens, targets } = batch(engine.globalSteps, length(engine.globalSteps));
          yield { tokens, targets };
        }
      })();
    seed(3);
    const losses: number[] = [];
    for (let step = 0; step < 7; ++step) {
      losses.push((await engine.trainBatch(batches(lengthOf))).item());
    }
    engines.push({ losses, judged: (await engine.evalBatch(batches(whole))).item() });
  }
  expect(engines[0]).toEqual(engines[1]);
});

test('a stage that reads only labels may receive any inputs', async () => {
  const { parts } = await engineOf(section);
  const { targets } = batch(0);
  for (const inputs of [undefined, null, 7, [1, 2]]) {
    const [[same, labels] = []] = parts.curriculum.cutBatches([[inputs as never, targets]]);
    expect([same, (labels as Tensor).shape]).toEqual([inputs, [ROWS, LENGTHS[0]]]);
  }
});

describe('a schedule of the caller', () => {
  test('reports the length of each step', async () => {
    const engine = await engineOf(custom);
    engine.setCustomCurriculumLearningSchedule((step) => 2 * step);
    const lengths = [0, 1, 2].map(() => {
      const logits = engine.forward(batch(0).tokens);
      engine.backward(logits.to('f32').mean());
      engine.step();
      return logits.size(1);
    });
    expect(lengths).toEqual([2, 4, 6]);
  });

  test('is required, and must return whole numbers', async () => {
    const engine = await engineOf(custom);
    const tokens = batch(0).tokens;
    const missed = await refusal(() => engine.forward(tokens));
    expect(missed).toMatchObject({
      code: 'DS_CONFIG',
      op: 'curriculum_learning.schedule_type',
      hint: expect.stringContaining('setCustomCurriculumLearningSchedule'),
    });
    for (const wrong of [0, 2.5, Number.NaN, undefined as never]) {
      engine.setCustomCurriculumLearningSchedule(() => wrong);
      expect(await refusal(() => engine.forward(tokens))).toMatchObject({ code: 'DS_ARGUMENT' });
    }
    expect(
      await refusal(() => engine.setCustomCurriculumLearningSchedule(8 as never)),
    ).toMatchObject({ code: 'DS_ARGUMENT' });
    for (const other of [section, undefined]) {
      const one = await engineOf(other);
      expect(await refusal(() => one.setCustomCurriculumLearningSchedule(() => 4))).toMatchObject({
        code: 'DS_CONFIG',
        op: 'engine.setCustomCurriculumLearningSchedule',
      });
    }
  });
});

describe('a checkpoint', () => {
  let dir: string;
  beforeEach(() => {
    dir = mkdtempSync(join(tmpdir(), 'ds-curriculum-'));
  });
  afterEach(() => rmSync(dir, { recursive: true, force: true }));

  /** The last schedule has its largest length from the first step on. */
  test.each([
    ['a line', section, 8],
    ['a list', discrete([4, 8, 12], [2, 4]), 8],
    ['a list that falls back', discrete([12, 4, 6], [2, 4]), 12],
  ])('continues in the middle: %s', async (_, curriculum, third) => {
    const one = await engineOf(curriculum);
    seed(1);
    const losses = train(one, 3, whole);
    await one.saveCheckpoint(dir);
    losses.push(...train(one, 3, whole));

    const other = await engineOf(curriculum);
    await other.loadCheckpoint(dir);
    expect(other.curriculumSeqlen).toBe(third);
    expect(train(other, 3, whole)).toEqual(losses.slice(3));
    expect(weightsOf(other.module)).toEqual(weightsOf(one.module));
  });

  test('with other settings, or without a saved curriculum, only the step counts', async () => {
    const one = await engineOf(discrete([12, 4, 6], [2, 4]));
    train(one, 3, whole);
    await one.saveCheckpoint(dir, { tag: 'with' });
    const other = await engineOf(discrete([12, 4, 6], [3, 4]));
    train(other, 1, whole);
    await other.loadCheckpoint(dir, { tag: 'with' });
    expect(other.curriculumSeqlen).toBe(4);

    const without = await engineOf(undefined);
    await without.loadCheckpoint(dir, { tag: 'with' });
    await without.saveCheckpoint(dir, { tag: 'without' });
    await one.loadCheckpoint(dir, { tag: 'without' });
    expect(one.curriculumSeqlen).toBe(4);
  });

  test('an invalid saved curriculum is refused without changes', async () => {
    const engine = await engineOf(discrete([12, 4, 6], [2, 4]));
    train(engine, 3, whole);
    const { curriculum } = engine.parts;
    const state = curriculum.state();
    for (const wrong of [
      { ...state, difficulty: 0 },
      { ...state, section: 3 },
      { difficulty: 4 },
    ]) {
      const error = await refusal(() => curriculum.load(wrong, 'manifest.json'));
      expect(error).toMatchObject({ code: 'DS_CHECKPOINT' });
      expect((error as Error).message).toContain('manifest.json: state.curriculum');
    }
    expect(curriculum.state()).toEqual(state);
    expect(engine.curriculumSeqlen).toBe(12);
  });
});

test('an engine without an optimizer sees all tokens', async () => {
  const { engine } = await initialize({
    model: gpt2(),
    config: {
      train_micro_batch_size_per_gpu: 1,
      zero_optimization: { stage: 3 },
      curriculum_learning: section,
    },
    device: 'cpu',
  });
  open.push(engine);
  expect(noGrad(() => engine.forward(batch(0).tokens)).size(1)).toBe(TOKENS);
});

test('a stage that reads no batch keeps the maximum of the other stages', () => {
  const [module, progress] = [new nn.Linear(2, 2), { globalSteps: 0 }];
  const settings = resolveConfig(config(custom), { worldSize: 1 });
  const curriculum = curriculumOf(settings, { module, progress } as never);
  // From its maximum on, a curriculum stays there, whatever the schedule says.
  curriculum.setSchedule((step) => (step === 2 ? 12 : 4 + step));
  for (; progress.globalSteps < 3; ++progress.globalSteps) curriculum.cutBatches([]);
  expect(curriculum.seqlen).toBe(12);
});
