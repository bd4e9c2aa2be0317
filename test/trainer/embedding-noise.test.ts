// Tests the noise on embeddings: its magnitude, when it applies, and which rank draws which part.
import { nn, seed, Tensor, Trainer } from '../../lib/index.js';
import { noiseLike, sharingSamples, sharingTokens } from '../../lib/tensor/index.js';
import { addEmbeddingNoise } from '../../lib/trainer/embedding-noise.js';
import { samples, tinyModel } from './tiny.js';

/** The differences between the token embeddings of 2 x 8 tokens and the table's rows. */
function noiseOf(model: nn.models.GPT2): number[] {
  const { wte } = model.transformer;
  const tokens = Tensor.from(
    Int32Array.from({ length: 16 }, (_, i) => i),
    { shape: [2, 8] },
  );
  const rows = wte.weight.toArray().slice(0, 16 * 16);
  return wte
    .call(tokens)
    .toArray()
    .map((value, i) => value - (rows[i] as number));
}

test('uniform noise below alpha / sqrt(T C) in training, new in each step, none in evaluation', () => {
  const model = tinyModel();
  const end = addEmbeddingNoise(model, 5);
  const bound = 5 / Math.sqrt(8 * 16);
  const noise = noiseOf(model);
  const largest = Math.max(...noise.map(Math.abs));
  expect(largest).toBeLessThanOrEqual(bound * 1.0001);
  expect(largest).toBeGreaterThan(0.9 * bound);
  const mean = noise.reduce((sum, each) => sum + each, 0) / noise.length;
  expect(Math.abs(mean)).toBeLessThan(0.15 * bound);
  expect(noiseOf(model)).not.toEqual(noise);
  model.eval();
  expect(noiseOf(model)).toEqual(new Array(256).fill(0));
  model.train();
  end();
  expect(noiseOf(model)).toEqual(new Array(256).fill(0));
});

test('the gradient of a row is that of its embeddings', () => {
  const { wte } = tinyModel().transformer;
  const plain = tinyModel();
  addEmbeddingNoise(plain, 5);
  for (const table of [wte, plain.transformer.wte]) {
    table.weight.requireGrad(true);
    table
      .call(Tensor.from(Int32Array.of(3, 3, 5), { shape: [1, 3] }))
      .sum()
      .backward();
  }
  const [a, b] = [wte, plain.transformer.wte].map(({ weight }) => weight.grad?.toArray());
  expect(b).toEqual(a);
});

/** For [4, 6, 5] elements; all ranks draw from one state. */
function drawNoise(x: Tensor): number[][] {
  seed(3);
  const values = noiseLike(x, 1).toArray();
  const [rows = 0] = x.shape;
  const each = values.length / rows;
  return Array.from({ length: rows }, (_, row) => values.slice(row * each, (row + 1) * each));
}

test('an element gets the same noise on one rank and on several', () => {
  const fullRows = drawNoise(Tensor.empty([4, 6, 5], 'f32', Tensor.from([0]).device));
  const { device } = Tensor.from([0]);
  for (const rank of [0, 1]) {
    const share = { samples: 2, rank, ranks: 2 };
    const localRows = sharingSamples(share, () =>
      drawNoise(Tensor.empty([2, 6, 5], 'f32', device)),
    );
    expect(localRows).toEqual([0, 1].map((i) => fullRows[i * 2 + rank]));
    for (const first of [0, 3]) {
      const tokens = { first, count: 3, whole: 6 };
      const part = sharingTokens(tokens, () =>
        sharingSamples(share, () => drawNoise(Tensor.empty([2, 3, 5], 'f32', device))),
      );
      expect(part).toEqual(localRows.map((row) => row.slice(first * 5, (first + 3) * 5)));
    }
  }
});

test('a Trainer adds noise only to training batches', async () => {
  const losses = async (neftuneNoiseAlpha?: number): Promise<number[]> => {
    const options = { device: 'cpu', progress: false, lr: 0, batchSize: 2, epochs: 1 };
    const model = tinyModel();
    const trainer = new Trainer({
      model,
      train: samples(10),
      eval: samples(4, 20),
      log: { every: 1 },
      ...options,
      stopSignals: [],
      ...(neftuneNoiseAlpha && { neftuneNoiseAlpha }),
    });
    const losses: number[] = [];
    for await (const event of trainer.train()) {
      if (event.type === 'log') losses.push(event.loss);
      if (event.type === 'evaluate') losses.push(event.metrics.loss as number);
    }
    await trainer.destroy();
    expect(noiseOf(model)).toEqual(new Array(256).fill(0));
    return losses;
  };
  const [plain, noisy] = [await losses(), await losses(5)];
  expect(noisy).toHaveLength(plain.length);
  expect(noisy.at(-1)).toBe(plain.at(-1));
  for (const i of [0, 1, 2]) expect(noisy[i]).not.toBe(plain[i]);
});

test.each([-1, Number.NaN, '5'])('an alpha of %p is refused', (neftuneNoiseAlpha) => {
  const options = { model: tinyModel(), neftuneNoiseAlpha: neftuneNoiseAlpha as number };
  expect(() => new Trainer(options)).toThrow(/Trainer neftuneNoiseAlpha: expected/);
});

test('a model that is no language model is refused', () => {
  expect(() => addEmbeddingNoise(new nn.Linear(2, 2), 5)).toThrow(
    /neftuneNoiseAlpha: expected a language model/,
  );
});
