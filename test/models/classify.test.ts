// classify(): labels and scores of texts, in batches of any size.
import { join } from 'node:path';
import { nn, seed, text } from '../../lib/index.js';
import { noGrad, Tensor } from '../../lib/tensor/index.js';
import { TOKENIZERS } from './head-rows.js';

const tokenizer = text.Tokenizer.fromPretrained(join(TOKENIZERS, 'wordpiece'));
const { vocabSize } = tokenizer;
const TEXTS = ['a good film', 'the dog', 'an awful plot was not great', 'cat'];
const LABELS = ['bad', 'fine', 'good'];

function bert(options: object = {}): nn.models.Bert {
  seed(5);
  const sizes = { layers: 1, heads: 2, channels: 16, hidden: 24, maxSeq: 32, dropout: 0.5 };
  const head = { task: 'sequence-classification', labels: LABELS } as const;
  return new nn.models.Bert({ ...sizes, vocabSize, initializerRange: 0.2, ...head, ...options });
}

/** The logits of one text. */
function logitsOf(model: nn.models.TaskModel, one: string | readonly [string, string]): number[] {
  const { ids, types } =
    typeof one === 'string'
      ? { ids: tokenizer.encode(one), types: null }
      : tokenizer.encodePair(one[0], one[1]);
  const shape = [1, ids.length];
  model.eval();
  const out = noGrad(() =>
    model.call(Tensor.from(ids, { shape }), { types: types && Tensor.from(types, { shape }) }),
  );
  return [...(out.toRaw() as Float32Array)];
}

test('scores are probabilities of the labels, in the order of the texts', () => {
  const model = bert();
  model.train();
  const rows = [...TEXTS, ['the dog', 'a good film'] as const];
  for (const batchSize of [2, 32]) {
    const found = model.classify(rows, { tokenizer, batchSize });
    expect(model.training).toBe(true);
    found.forEach(({ label, score, scores }, i) => {
      const exps = logitsOf(model, rows[i] as string).map(Math.exp);
      model.train();
      const sum = exps.reduce((total, value) => total + value, 0);
      LABELS.forEach((name, l) => {
        expect(scores[name]).toBeCloseTo((exps[l] as number) / sum, 5);
      });
      expect(score).toBe(Math.max(...Object.values(scores)));
      expect(scores[label]).toBe(score);
    });
  }
  expect(model.classify([], { tokenizer })).toEqual([]);
});

test('several labels have independent probabilities, and values stay as they are', () => {
  const several = bert({ problemType: 'multi_label_classification' });
  const [found] = several.classify(['the dog'], { tokenizer });
  logitsOf(several, 'the dog').forEach((x, i) => {
    expect(found?.scores[LABELS[i] as string]).toBeCloseTo(1 / (1 + Math.exp(-x)), 5);
  });
  const value = bert({ labels: ['stars'], problemType: 'regression' });
  const [stars] = value.classify(['the dog'], { tokenizer });
  expect(stars).toMatchObject({ label: 'stars' });
  expect(stars?.score).toBeCloseTo(logitsOf(value, 'the dog')[0] as number, 5);
});

test('a model of another task, and a model from no folder, are refused', () => {
  expect(() => bert({ task: 'masked-lm' }).classify(['a'], { tokenizer })).toThrow(
    /Bert classify: expected a model of the task "sequence-classification", got masked-lm/,
  );
  expect(() => bert().classify(['a'])).toThrow(/Bert classify: expected `tokenizer`/);
});
