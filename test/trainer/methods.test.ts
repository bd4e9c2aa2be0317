// Methods beside DPO: each learns on a small model, and reports TRL's metrics.
import {
  cpo,
  gkd,
  kto,
  type nn,
  orpo,
  reward,
  type TrainingMethod,
  text,
} from '../../lib/index.js';
import { refusal } from '../support/refusal.js';
import { labelledRows, modelOf, pairRows, scorerOf, tokenizer, trainAnswers } from './answers.js';

const pairs = () => text.PairDataset.open({ tokenizer, rows: pairRows, length: 32 });
const answers = () => text.UnpairedDataset.open({ tokenizer, rows: labelledRows, length: 32 });

async function expectLearns(
  method: TrainingMethod,
  train: unknown,
  model: nn.models.CausalLM | nn.models.TaskModel = modelOf(),
): Promise<Readonly<Record<string, number>>> {
  const every = { data: train as never, every: 8 };
  const { logs, metrics } = await trainAnswers({
    model,
    train: train as never,
    method,
    eval: every,
  });
  const [first, last] = [logs[0], logs.at(-1)].map((log) => log?.loss as number);
  expect(last).toBeLessThan(first as number);
  for (const name of method.metrics)
    expect([name, metrics[name]]).toEqual([name, expect.any(Number)]);
  for (const name of method.metrics) {
    if (name !== 'rewards/margins') expect(Object.keys(logs.at(-1)?.metrics ?? {})).toContain(name);
  }
  return metrics as Readonly<Record<string, number>>;
}

test('cpo, with the margins of chosen answers', async () => {
  const metrics = await expectLearns(cpo(), await pairs());
  expect(metrics['rewards/margins']).toBeGreaterThan(0);
});

test.each(['simpo', 'ipo', 'hinge'] as const)('cpo with the loss %s', async (loss) => {
  await expectLearns(cpo({ loss, cpoAlpha: 0 }), await pairs());
});

test('AlphaPO: rewards that are no logarithms', async () => {
  await expectLearns(cpo({ loss: 'simpo', alpha: 0.25, cpoAlpha: 0 }), await pairs());
});

test('orpo', async () => {
  const metrics = await expectLearns(orpo(), await pairs());
  expect(metrics.nll_loss).toBeGreaterThan(0);
});

test.each(['kto', 'apo_zero_unpaired'] as const)('kto with the loss %s', async (loss) => {
  const metrics = await expectLearns(kto({ loss, reference: modelOf() }), await answers());
  expect(metrics['rewards/margins']).toBeGreaterThan(0);
});

test('reward models', async () => {
  const train = await text.PairDataset.open({
    tokenizer,
    whole: true,
    overlong: 'drop',
    length: 32,
    rows: pairRows.map((row, i) => (i % 2 ? row : { ...row, margin: 0.5 })),
  });
  const method = reward({ centerRewardsCoefficient: 0.01 });
  const metrics = await expectLearns(method, train, scorerOf());
  expect(metrics.accuracy).toBeGreaterThan(0.5);
});

test('gkd: the divergence from a teacher shrinks', async () => {
  const rows = pairRows.map(({ prompt, chosen }) => ({ prompt, completion: chosen }));
  const train = { length: rows.length, get: (i: number) => sampleOf(rows[i] as (typeof rows)[0]) };
  for (const beta of [0, 0.5, 1]) {
    await expectLearns(gkd({ teacher: modelOf(9), beta, lmbda: 0 }), train);
  }
  const localModel = modelOf();
  const same = await refusal(() =>
    trainAnswers({ model: localModel, train, method: gkd({ teacher: localModel, lmbda: 0 }) }),
  );
  expect(same.message).toMatch(/gkd teacher: expected a model other than the trained model/);
});

/** A row of a TextDataset. */
function sampleOf({ prompt, completion }: { prompt: string; completion: string }): text.TextSample {
  const before = tokenizer.encode(prompt);
  const ids = Int32Array.from([...before, ...tokenizer.encode(completion).subarray(1)]);
  const labels = ids.map((id, i) => (i < before.length ? -100 : id));
  const positions = ids.map((_, i) => i);
  return { ids, labels, positions, documents: new Int32Array(ids.length) };
}

test.each([
  [() => cpo({ loss: 'hinge', labelSmoothing: 0.1 }), /cpo labelSmoothing of hinge: expected 0/],
  [() => cpo({ loss: 'ipoo' as 'ipo' }), /cpo loss: .*simpo/],
  [() => kto({ beta: 0 }), /kto beta/],
  [() => kto({ desirableWeight: -1 }), /kto desirableWeight/],
  [() => orpo({ loss: 1 } as object), /orpo.*loss/],
  [() => gkd({} as never), /gkd teacher/],
  [() => reward({ centerRewardsCoefficient: -1 }), /reward centerRewardsCoefficient/],
])('wrong options are refused: %#', (make, message) => {
  expect(make).toThrow(message);
});

test('data and models of other methods are refused', async () => {
  const [train, labelled] = [await pairs(), await answers()];
  const each = [
    [{ model: modelOf(), train: labelled, method: cpo() }, /text.PairDataset for cpo/],
    [{ model: modelOf(), train: labelled, method: orpo() }, /text.PairDataset for orpo/],
    [
      { model: modelOf(), train, method: kto({ reference: modelOf() }) },
      /text.UnpairedDataset for kto/,
    ],
    [{ model: modelOf(), train, method: reward() }, /a classifier with one label/],
    [{ model: scorerOf(), train, method: orpo() }, /a CausalLM for orpo/],
    [{ model: modelOf(), train: labelled, method: kto() }, /kto: expected a reference/],
  ] as const;
  for (const [options, message] of each) {
    const error = await refusal(() => trainAnswers(options as Parameters<typeof trainAnswers>[0]));
    expect(error.message).toMatch(message);
  }
});
