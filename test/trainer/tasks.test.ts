// Tests that the Trainer trains and evaluates models with the heads of tasks.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { nn, seed, Trainer, text } from '../../lib/index.js';
import { HEADS, TOKENIZERS } from '../models/head-rows.js';

const tokenizer = text.Tokenizer.fromPretrained(join(TOKENIZERS, 'wordpiece'));
let home: string;
beforeAll(() => {
  home = mkdtempSync(join(tmpdir(), 'ds-tasks-'));
});
afterAll(() => rmSync(home, { recursive: true, force: true }));

const SIZES = {
  model_type: 'bert',
  vocab_size: tokenizer.vocabSize,
  hidden_size: 24,
  num_hidden_layers: 2,
  num_attention_heads: 4,
  intermediate_size: 40,
  max_position_embeddings: 24,
  hidden_dropout_prob: 0,
  attention_probs_dropout_prob: 0,
  initializer_range: 0.15,
};

type Options = Omit<nn.models.TaskPretrainedOptions, 'dtype' | 'revision'> & {
  task: nn.models.HeadTask;
};

function modelOf(options: Options): nn.models.TaskModel {
  seed(3);
  return nn.models.fromConfig(SIZES, options);
}

const GOOD = ['great film', 'a good plot', 'happy acting', 'the film was very good'];
const BAD = ['awful film', 'a bad plot', 'unhappy acting', 'the film was very bad'];
const rows = [
  ...GOOD.map((text) => ({ text: text, label: 'good' })),
  ...BAD.map((text) => ({ text: text, label: 'bad' })),
];

async function trainTask(
  model: nn.models.TaskModel,
  train: text.LabelledDataset,
  more: object = {},
) {
  const trainer = new Trainer({
    model,
    tokenizer,
    train,
    eval: train,
    epochs: 20,
    batchSize: 4,
    lr: 0.01,
    progress: false,
    device: 'cpu',
    ...more,
  });
  let best: number | null = null;
  for await (const event of trainer.train()) {
    if (event.type === 'end') best = event.best?.metric ?? null;
  }
  return { trainer, best, metrics: await trainer.evaluate() };
}

test('a classifier learns rows of text, and a saved folder has its labels', async () => {
  const train = await text.LabelledDataset.open({ rows, tokenizer });
  expect(train.labels).toEqual(['bad', 'good']);
  const model = modelOf({ task: 'sequence-classification', labels: train.labels ?? [] });
  const { trainer, metrics } = await trainTask(model, train);
  expect(metrics).toMatchObject({ accuracy: 1, f1: 1, precision: 1, recall: 1 });
  expect(metrics.matthews_correlation).toBeCloseTo(1, 10);
  expect(metrics.loss).toBeLessThan(0.1);
  const scores = await trainer.predict(train);
  expect(scores.map(([bad = 0, good = 0]) => Number(good > bad))).toEqual([1, 1, 1, 1, 0, 0, 0, 0]);
  const dir = join(home, 'classifier');
  await trainer.save(dir);
  await trainer.destroy();
  const read = await nn.models.fromPretrained(dir, { task: 'auto' });
  expect(read).toBeInstanceOf(nn.models.Bert);
  expect((read as nn.models.Bert).labels).toEqual(['bad', 'good']);
  expect((read as nn.models.Bert).task).toBe('sequence-classification');
});

test('accumulated micro-batches and class weights give the loss of a whole batch', async () => {
  const train = await text.LabelledDataset.open({ rows: rows.slice(2, 7), tokenizer });
  const classWeights = { good: 3 };
  const losses: number[] = [];
  for (const [batchSize, accumulation] of [
    [5, 1],
    [2, 3],
  ]) {
    const model = modelOf({ task: 'sequence-classification', labels: ['bad', 'good'] });
    const options = { batchSize, accumulation, epochs: 2, classWeights, lr: 1e-3 };
    const { metrics, trainer } = await trainTask(model, train, {
      ...options,
      data: { sampling: 'sequential' },
    });
    losses.push(metrics.loss);
    await trainer.destroy();
  }
  expect(losses[0]).toBeCloseTo(losses[1] as number, 5);
});

test('pairs, values and several labels choose the loss', async () => {
  const pairs = rows.map(({ text: one }, i) => ({
    sentence1: one,
    sentence2: 'the plot',
    label: i / 10,
  }));
  const values = await text.LabelledDataset.open({ rows: pairs, tokenizer });
  expect(values.kind).toBe('value');
  const regression = modelOf({ task: 'sequence-classification', labels: values.labels ?? [] });
  const first = await trainTask(regression, values, { epochs: 60 });
  expect(first.metrics.pearson).toBeGreaterThan(0.9);
  expect(first.metrics.mse).toBeCloseTo(first.metrics.loss, 6);
  await first.trainer.destroy();
  const tagged = rows.map(({ text: one, label }) => ({
    text: one,
    labels: one.includes('film') ? [label, 'film'] : [label],
  }));
  const several = await text.LabelledDataset.open({ rows: tagged, tokenizer });
  expect(several.labels).toEqual(['bad', 'film', 'good']);
  const multi = modelOf({
    task: 'sequence-classification',
    labels: several.labels ?? [],
    problemType: 'multi_label_classification',
  });
  const second = await trainTask(multi, several, { epochs: 40 });
  expect(second.metrics).toMatchObject({ accuracy: 1, f1: 1 });
  await second.trainer.destroy();
});

test('entities of tokens are counted whole', async () => {
  const words = [
    { tokens: ['the', 'cat', 'was', 'good'], tags: ['O', 'B-PET', 'O', 'O'] },
    { tokens: ['a', 'happy', 'dog'], tags: ['O', 'B-PET', 'I-PET'] },
    { tokens: ['acting', 'was', 'awful'], tags: ['O', 'O', 'O'] },
  ];
  const task = 'token-classification';
  const train = await text.LabelledDataset.open({ rows: words, tokenizer, task });
  expect(train.labels).toEqual(['B-PET', 'I-PET', 'O']);
  const model = modelOf({ task, labels: train.labels ?? [] });
  const { trainer, metrics } = await trainTask(model, train, { epochs: 40, batchSize: 3 });
  expect(metrics).toMatchObject({ accuracy: 1, f1: 1, precision: 1, recall: 1 });
  await trainer.destroy();
});

test('finds answers by the positions of their tokens', async () => {
  const context = 'the cat was good and the dog was bad';
  const squad = ['cat', 'dog'].map((word) => ({
    question: `was the ${word} good`,
    context,
    answers: { text: [word], answer_start: [context.indexOf(word)] },
  }));
  const task = 'question-answering';
  const train = await text.LabelledDataset.open({ rows: squad, tokenizer, task });
  for (const i of [0, 1]) {
    const { ids, target } = train.get(i);
    const found = ids.slice(target[0], (target[1] as number) + 1);
    expect(tokenizer.decode(found)).toBe(['cat', 'dog'][i]);
  }
  const { trainer, metrics } = await trainTask(modelOf({ task }), train, { epochs: 60 });
  expect(metrics).toMatchObject({ exact_match: 1, f1: 1 });
  await trainer.destroy();
});

test('masked tokens are predicted', async () => {
  const task = 'masked-lm';
  const train = await text.LabelledDataset.open({ rows, tokenizer, task, maskShare: 0.5 });
  const { trainer, metrics } = await trainTask(modelOf({ task }), train, { epochs: 60 });
  expect(metrics.accuracy).toBeGreaterThan(0.6);
  await trainer.destroy();
});

test('a decoder finds the last tokens by the padding of the tokenizer', async () => {
  const row = HEADS.find(({ name }) => name === 'gpt2 sequence-classification');
  const train = await text.LabelledDataset.open({ rows, tokenizer });
  const config = { model_type: 'gpt2', vocab_size: tokenizer.vocabSize, n_embd: 24, n_layer: 2 };
  seed(3);
  const model = nn.models.fromConfig(
    { ...config, n_head: 4, n_positions: 24 },
    { task: 'sequence-classification', labels: ['bad', 'good'] },
  );
  expect(row).toBeDefined();
  expect(model.padTokenId).toBe(null);
  const { trainer, metrics } = await trainTask(model, train);
  expect(model.padTokenId).toBe(tokenizer.padId);
  expect(metrics.accuracy).toBe(1);
  await trainer.destroy();
});

test('the best evaluation may be chosen by a metric of the task', async () => {
  const train = await text.LabelledDataset.open({ rows, tokenizer });
  const model = modelOf({ task: 'sequence-classification', labels: ['bad', 'good'] });
  const save = { dir: join(home, 'best'), every: 'epoch', best: 'f1', keep: 1 };
  const { best, trainer } = await trainTask(model, train, { epochs: 3, save });
  expect(best).toBeGreaterThan(0.4);
  await trainer.destroy();
  const other = modelOf({ task: 'sequence-classification', labels: ['bad', 'good'] });
  expect(() => new Trainer({ model: other, save: { ...save, every: 2, best: 'glue' } })).toThrow(
    /save\.best/,
  );
  expect(() => new Trainer({ model: other, classWeights: 3 as never })).toThrow(
    /classWeights: expected a list of factors/,
  );
});
