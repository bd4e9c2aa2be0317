// Values of options that ended in a TypeError of the library instead of an error with the place.
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { evaluation, initInference, nn, text } from '../../lib/index.js';
import { writeModel } from '../evaluation/models.js';

const dir = mkdtempSync(join(tmpdir(), 'ds-wrong-values-'));
const rows = join(dir, 'rows.jsonl');
let model: nn.models.CausalLM;
beforeAll(async () => {
  await writeModel(join(dir, 'model'));
  model = await nn.models.fromPretrained(join(dir, 'model'));
  writeFileSync(rows, '{"text":"The stages shard state."}\n');
});
afterAll(() => rmSync(dir, { recursive: true }));

const bert = (task: nn.models.HeadTask) =>
  new nn.models.Bert({
    layers: 1,
    heads: 2,
    channels: 8,
    hidden: 8,
    maxSeq: 8,
    vocabSize: 9,
    task,
  });
const wrong = (value: unknown): never => value as never;

test.each<[string, () => unknown, RegExp]>([
  [
    'onProgress',
    () =>
      evaluation.evaluate(model, { files: rows, length: 8, threads: 0, onProgress: wrong(/x/) }),
    /^evaluation onProgress: expected a function, got/,
  ],
  [
    'a missing file in a list',
    () =>
      text.TextDataset.open({
        files: [wrong(undefined)],
        tokenizer: join(dir, 'model'),
        length: 8,
      }),
    /^TextDataset.*files: expected a path.*got an array \[undefined\]/,
  ],
  [
    'tokenizer of classify',
    () => bert('sequence-classification').classify(['a'], { tokenizer: wrong('bert') }),
    /^Bert classify tokenizer: expected a text\.Tokenizer, got "bert"/,
  ],
  [
    'tokenizer of embed',
    () => bert('embedding').embed(['a'], { tokenizer: wrong(-1) }),
    /^Bert embed tokenizer: expected a text\.Tokenizer, got -1/,
  ],
  [
    'prompt of embed',
    () => bert('embedding').embed(['a'], { prompt: wrong({}) }),
    /^Bert embed prompt: expected a string, got an object/,
  ],
  [
    'maxShardBytes',
    () =>
      nn.saveWeights(model, join(dir, 'out'), { maxShardBytes: wrong(Symbol('x')), format: 'hf' }),
    /maxShardBytes: expected a positive number of bytes, got/,
  ],
  [
    'messages of null',
    () => text.Tokenizer.fromPretrained(join(dir, 'model')).applyChatTemplate(wrong([null])),
    /expected a list of messages with a role, got null/,
  ],
  [
    'a bigint in a message of a pair',
    () =>
      text.PairDataset.open({
        rows: [
          {
            chosen: [
              { role: 'user', content: 'a' },
              { role: 'assistant', content: 10n },
            ],
            rejected: [
              { role: 'user', content: 'a' },
              { role: 'assistant', content: 'b' },
            ],
          },
        ],
        tokenizer: join(dir, 'model'),
        length: 8,
      }),
    /^row 0: /,
  ],
  [
    'a number of a class that is an id',
    () =>
      text.LabelledDataset.open({
        rows: [
          { text: 'a', label: 0 },
          { text: 'b', label: 2 ** 40 },
        ],
        tokenizer: join(dir, 'model'),
      }),
    /^row 1: expected the number of a class below 1048576, got 1099511627776/,
  ],
  [
    'dtype of saveWeights',
    () => nn.saveWeights(model, join(dir, 'out'), { dtype: wrong(10n) }),
    /^saveWeights dtype: expected .*, got 10n/,
  ],
  [
    'format of loadWeights',
    () => nn.loadWeights(model, join(dir, 'model'), { format: wrong(10n) }),
    /format.*expected "hf" or "native", got 10n/,
  ],
])('%s', async (_, call, message) => {
  await expect((async () => call())()).rejects.toThrow(message);
});

test.each(['n', 'numBeams'])('%s of a request that no memory holds', async (name) => {
  const engine = await initInference(join(dir, 'model'), { device: 'cpu' });
  const request = { prompt: 'a', maxNewTokens: 1, [name]: 2 ** 40 };
  await expect(engine.generate(request)).rejects.toThrow(
    new RegExp(`${name}: expected an integer .*16384.*, got 1099511627776`),
  );
  await engine.destroy();
});
