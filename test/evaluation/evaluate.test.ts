// evaluate(): loss, perplexity and accuracy against sums over the logits of each row.
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { evaluation, initialize, nn, peft, text } from '../../lib/index.js';
import { stir } from '../peft/models.js';
import { refusal } from '../support/refusal.js';
import { best, logProbabilities, TOKENIZER, writeModel } from './models.js';

const dir = mkdtempSync(join(tmpdir(), 'ds-evaluate-'));
const folder = join(dir, 'model');
const files = join(dir, 'rows.jsonl');
const LINES = ['The stages shard state.', 'A rank', 'Gradients are summed over all ranks.'];
const quiet = { threads: 0, length: 24 };

let model: nn.models.CausalLM;
beforeAll(async () => {
  await writeModel(folder);
  writeFileSync(files, LINES.map((line) => JSON.stringify({ text: line })).join('\n'));
  model = await nn.models.fromPretrained(folder);
});
afterAll(() => rmSync(dir, { recursive: true }));

/** Sums over the rows, as documents of their own, of at most `length` tokens. */
async function reference(model: nn.models.CausalLM, length: number) {
  const data = await text.TextDataset.open({
    files,
    tokenizer: TOKENIZER,
    length,
    packing: false,
    threads: 0,
  });
  const sums = { loss: 0, correct: 0, tokens: 0 };
  for (let i = 0; i < data.length; ++i) {
    const { ids } = data.get(i);
    const logs = logProbabilities(model, [...ids]);
    for (let t = 1; t < ids.length; ++t) {
      const row = logs[t - 1] as number[];
      sums.loss -= row[ids[t] as number] as number;
      sums.correct += Number(best(row) === ids[t]);
      sums.tokens++;
    }
  }
  const { loss, correct, tokens } = sums;
  return { loss: loss / tokens, accuracy: correct / tokens, tokens };
}

test.each([{}, { packing: true }, { batchSize: 2 }, { batchSize: 1, packing: true }])(
  'equals the sums over the logits: %j',
  async (how) => {
    const found = await evaluation.evaluate(model, { files, ...quiet, ...how });
    const expected = await reference(model, 24);
    expect(found.loss).toBeCloseTo(expected.loss, 5);
    expect(found.perplexity).toBe(Math.exp(found.loss));
    expect([found.accuracy, found.tokens]).toEqual([expected.accuracy, expected.tokens]);
    expect([found.rows, found.cutRows]).toEqual([3, 0]);
  },
);

test('rows that are longer than a sample are cut and counted', async () => {
  const found = await evaluation.evaluate(model, { files, ...quiet, length: 5 });
  const expected = await reference(model, 5);
  expect(found.loss).toBeCloseTo(expected.loss, 5);
  expect([found.tokens, found.cutRows > 0]).toEqual([expected.tokens, true]);
});

test('only completions count in rows with prompts', async () => {
  const rows = join(dir, 'completions.jsonl');
  writeFileSync(rows, JSON.stringify({ prompt: 'The stages', completion: ' shard state.' }));
  const all = await evaluation.evaluate(model, { files: rows, ...quiet, loss: 'all' });
  const some = await evaluation.evaluate(model, { files: rows, ...quiet });
  expect(some.tokens).toBeLessThan(all.tokens);
});

test('the loss of routers does not count', async () => {
  const sizes = { layers: 1, heads: 2, kvHeads: 1, channels: 16, maxSeq: 24, hidden: 32 };
  const moe = { experts: 4, perToken: 2 };
  const mixtral = new nn.models.Mixtral({ vocabSize: 1007, ...sizes, moe, routerAuxLossCoef: 10 });
  const found = await evaluation.evaluate(mixtral, { files, tokenizer: TOKENIZER, ...quiet });
  expect(found.loss).toBeCloseTo((await reference(mixtral, 24)).loss, 5);
});

test('quantized layers and adapters take part', async () => {
  const plain = await evaluation.evaluate(model, { files, ...quiet });
  const adapted = peft.addLora(await nn.models.fromPretrained(folder), { r: 2, loraAlpha: 100 });
  stir(adapted);
  const withAdapter = await evaluation.evaluate(adapted, { files, ...quiet });
  expect(withAdapter.loss).toBeCloseTo((await reference(adapted, 24)).loss, 4);
  const packed = peft.quantize(await nn.models.fromPretrained(folder));
  const inFourBits = await evaluation.evaluate(packed, { files, ...quiet });
  expect(inFourBits.loss).toBeCloseTo((await reference(packed, 24)).loss, 4);
  expect(new Set([plain, withAdapter, inFourBits].map(({ loss }) => loss)).size).toBe(3);
});

test('the mode of the model stays, and progress is reported', async () => {
  const seen: number[][] = [];
  model.train();
  const onProgress = (done: number, total: number) => seen.push([done, total]);
  await evaluation.evaluate(model, { files, ...quiet, batchSize: 2, onProgress });
  expect([model.training, ...seen]).toEqual([true, [2, 3], [3, 3]]);
});

test.each<[how: object, message: RegExp]>([
  [{ length: 25 }, /length: expected at most 24/],
  [{ batchSize: 0 }, /batchSize: expected/],
  [{ lenght: 4 }, /length/],
])('refuses the options %j', async (options, message) => {
  const { code, message: text } = await refusal(() =>
    evaluation.evaluate(model, { files, ...quiet, ...options }),
  );
  expect([code, text]).toEqual(['DS_ARGUMENT', expect.stringMatching(message)]);
});

test('refuses other models, and a model of an engine', async () => {
  const refusalFor = async (item: unknown, options: object = {}): Promise<string> => {
    const run = () =>
      evaluation.evaluate(item as nn.models.CausalLM, { files, ...quiet, length: 8, ...options });
    return (await refusal(run)).message;
  };
  expect(await refusalFor(folder)).toMatch(/evaluate model: expected a causal language model/);
  const localModel = new nn.models.GPT2({
    vocabSize: 64,
    maxSeq: 16,
    layers: 1,
    heads: 1,
    channels: 8,
  });
  expect(await refusalFor(localModel)).toMatch(
    /tokenizer: expected a tokenizer, got a model without a/,
  );
  const config = { train_batch_size: 1, optimizer: { type: 'AdamW' } } as const;
  const { engine } = await initialize({ model: localModel, config, device: 'cpu' });
  expect(await refusalFor(localModel, { tokenizer: TOKENIZER })).toMatch(/Trainer\.evaluate\(\)/);
  engine.destroy();
});
