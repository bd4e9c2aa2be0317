// Embeddings of texts, folders of sentence-transformers, and contrastive losses by their formulas.
import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { nn, seed, Tensor, Trainer, text } from '../../lib/index.js';
import { noGrad } from '../../lib/tensor/index.js';
import { TOKENIZERS } from './head-rows.js';

const tokenizer = text.Tokenizer.fromPretrained(join(TOKENIZERS, 'wordpiece'));
const TEXTS = ['a good film', 'the dog', 'an awful plot was not great', 'cat'];
let dir: string;
beforeAll(() => {
  dir = mkdtempSync(join(tmpdir(), 'ds-embeddings-'));
});
afterAll(() => rmSync(dir, { recursive: true }));

function modelOf(): nn.models.Bert {
  seed(5);
  const sizes = { layers: 1, heads: 2, channels: 16, hidden: 24, maxSeq: 32, dropout: 0 };
  const { vocabSize } = tokenizer;
  return new nn.models.Bert({ ...sizes, vocabSize, attentionDropout: 0, initializerRange: 0.2 });
}

const lengthOf = (row: Float32Array): number => Math.hypot(...row);

test('texts keep their order, in batches of any size', () => {
  const model = modelOf();
  const fullRows = model.embed(TEXTS, { tokenizer });
  const small = model.embed(TEXTS, { tokenizer, batchSize: 1 });
  fullRows.forEach((row, i) => {
    row.forEach((value, c) => {
      expect(value).toBeCloseTo(small[i]?.[c] as number, 5);
    });
  });
  expect(model.embed([], { tokenizer })).toEqual([]);
  const prompted = model.embed(['dog'], { tokenizer, prompt: 'the ' });
  expect(prompted[0]?.[0]).toBeCloseTo(fullRows[1]?.[0] as number, 5);
  expect(() => model.embed('dog' as never)).toThrow(/embed: expected a list of texts, got "dog"/);
  expect(() => model.embed(TEXTS)).toThrow(/embed: expected `tokenizer`/);
});

test('a saved folder has the format of sentence-transformers', async () => {
  const model = modelOf();
  model.pooling = { modes: ['cls_token', 'mean_tokens'], normalize: true };
  const home = join(dir, 'saved');
  await model.save(home);
  const modules = JSON.parse(readFileSync(join(home, 'modules.json'), 'utf8'));
  expect(modules.map(({ type }: { type: string }) => type.split('.').at(-1))).toEqual([
    'Transformer',
    'Pooling',
    'Normalize',
  ]);
  cpSync(join(TOKENIZERS, 'wordpiece', 'vocab.txt'), join(home, 'vocab.txt'));
  writeFileSync(join(home, 'sentence_bert_config.json'), '{"max_seq_length": 4}');
  const read = await nn.models.fromPretrained(home, { task: 'embedding' });
  expect(read.pooling).toEqual(model.pooling);
  const [row] = read.embed(['a good film']);
  expect(row).toHaveLength(32);
  expect(lengthOf(row as Float32Array)).toBeCloseTo(1, 5);
  // Of this text four tokens are read: [CLS] an awful [SEP].
  const long = read.embed(['awful plot was not great']);
  const short = read.embed(['awful plot']);
  expect(long).toEqual(short);
});

test('a model in a subfolder is read, and an unknown module is refused', async () => {
  const home = join(dir, 'below');
  await modelOf().save(join(home, '0_Transformer'));
  mkdirSync(join(home, '1_Pooling'));
  writeFileSync(join(home, '1_Pooling', 'config.json'), '{"pooling_mode": "lasttoken"}');
  const modules = (last: string) =>
    ['Transformer', last].map((name, idx) => ({
      idx,
      name: `${idx}`,
      path: `${idx}_${name}`,
      type: `sentence_transformers.sentence_transformer.modules.${name}`,
    }));
  const file = join(home, 'modules.json');
  writeFileSync(file, JSON.stringify(modules('Pooling')));
  const read = await nn.models.fromPretrained(home, { task: 'embedding' });
  expect(read.pooling.modes).toEqual(['lasttoken']);
  writeFileSync(file, JSON.stringify(modules('Dense')));
  await expect(nn.models.fromPretrained(home, { task: 'embedding' })).rejects.toThrow(
    /modules\.json: expected modules Transformer, Pooling and Normalize, got .*Dense/,
  );
});

const rowsOf = (rows: number[][]): Tensor =>
  Tensor.from(Float32Array.from(rows.flat()), { shape: [rows.length, (rows[0] as []).length] });

test('contrastive losses follow their formulas', () => {
  const [a, b, c] = [
    [
      [1, 2, -1],
      [0.5, -1, 3],
    ],
    [
      [2, 1, 0],
      [-1, 0.5, 2],
    ],
    [
      [0, 1, 1],
      [3, 1, -2],
    ],
  ] as [number[][], number[][], number[][]];
  const dot = (x: number[], y: number[]) => x.reduce((sum, v, i) => sum + v * (y[i] as number), 0);
  const cosine = (x: number[], y: number[]) => dot(x, y) / Math.hypot(...x) / Math.hypot(...y);
  const losses = a.map((x, i) => {
    const scores = b.map((y) => Math.exp(20 * cosine(x, y)));
    return -Math.log((scores[i] as number) / scores.reduce((sum, value) => sum + value, 0));
  });
  const [A, B, C] = [a, b, c].map(rowsOf) as [Tensor, Tensor, Tensor];
  const mean = (values: number[]) => values.reduce((sum, value) => sum + value, 0) / values.length;
  const { multipleNegativesRanking, cosineLoss, tripletLoss } = nn.models;
  noGrad(() => {
    expect(multipleNegativesRanking(A, B).item()).toBeCloseTo(mean(losses), 4);
    const labels = Tensor.from(Float32Array.of(0.3, 0.9));
    const expected = mean(a.map((x, i) => (cosine(x, b[i] as number[]) - [0.3, 0.9][i]!) ** 2));
    expect(cosineLoss(A, B, labels).item()).toBeCloseTo(expected, 5);
    const distance = (x: number[], y: number[]) => Math.hypot(...x.map((v, i) => v - y[i]!));
    const triplets = a.map((x, i) => Math.max(0, distance(x, b[i]!) - distance(x, c[i]!) + 5));
    expect(tripletLoss(A, B, C).item()).toBeCloseTo(mean(triplets), 4);
  });
  expect(() => multipleNegativesRanking(A, rowsOf([[1, 2, 3]]))).toThrow(/embeddings \[B, C\]/);
});

test('a Trainer learns pairs by a contrastive loss', async () => {
  const pairs = ['film', 'dog', 'plot', 'cat'].map((word) => [word, `the ${word} was good`]);
  const encodeSide = (samples: string[][], side: number) =>
    tokenizer.encodeBatch(samples.map((pair) => pair[side] as string));
  const model = modelOf();
  const trainer = new Trainer({
    model,
    train: { length: 4, get: (i: number) => pairs[i] as string[] },
    epochs: 30,
    batchSize: 4,
    lr: 0.01,
    progress: false,
    device: 'cpu',
    data: {
      collate: (samples: string[][]) => ({ a: encodeSide(samples, 0), b: encodeSide(samples, 1) }),
    },
    loss: ({ forward, batch: { a, b } }) =>
      nn.models.multipleNegativesRanking(
        forward(a.ids, { mask: a.mask }),
        forward(b.ids, { mask: b.mask }),
      ),
    log: { every: 10 },
  });
  const losses: number[] = [];
  for await (const event of trainer.train()) if (event.type === 'log') losses.push(event.loss);
  await trainer.destroy();
  expect(losses.at(-1)).toBeLessThan((losses[0] as number) / 2);
});
