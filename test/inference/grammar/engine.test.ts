// Tests `format` of generate() and stream() on a tiny random model: finished texts always match.
import { join } from 'node:path';
import Ajv2020 from 'ajv/dist/2020.js';
import { type inference, initInference, nn, seed, text } from '../../../lib/index.js';
import { readFormat } from '../../../lib/inference/grammar/format.js';
import { Grammars } from '../../../lib/inference/grammar/grammars.js';
import { Matcher } from '../../../lib/runtime/grammar.js';
import { packageRoot } from '../../../lib/runtime/package-root.js';
import { required } from '../../../lib/runtime/required.js';
import { noGrad, scope, Tensor } from '../../../lib/tensor/index.js';
import { randomSchema } from './random-schemas.js';
import { validator } from './validator.js';
import { Seeded } from './walk.js';

const tokenizer = text.Tokenizer.fromPretrained(join(packageRoot(), 'examples', 'tokenizer'));
const sizes = {
  vocabSize: tokenizer.vocabSize + 3,
  maxSeq: 512,
  layers: 1,
  heads: 2,
  channels: 16,
};
const pages = { max_ragged_sequence_count: 4, kv_cache: { block_size: 16, blocks: 80 } };
const hot = { temperature: 1.5, maxNewTokens: 400 };
const person = {
  type: 'object',
  properties: { name: { type: 'string', maxLength: 12 }, age: { type: 'integer', minimum: 0 } },
  required: ['name', 'age'],
  additionalProperties: false,
};

let model: nn.models.GPT2;
let engine: inference.InferenceEngine;

beforeAll(async () => {
  seed(11);
  model = new nn.models.GPT2(sizes);
  engine = await initInference(model, pages, { tokenizer });
});
afterAll(() => engine.destroy());

const lastOf = (logits: Tensor): number[] => logits.toArray().slice(-sizes.vocabSize) as number[];

const only = async (request: inference.GenerateRequest): Promise<inference.Generation> =>
  required((await engine.generate(request))[0]);

test('texts match a schema, a pattern, a list, a grammar and any object', async () => {
  const ask = (format: inference.Format) => only({ prompt: 'Hello', seed: 1, format, ...hot });
  const generation = await ask(person);
  expect(generation.finishReason).toBe('stop');
  expect(new Ajv2020().compile(person)(JSON.parse(generation.text))).toBe(true);
  expect((await ask({ regex: '[ab]{3}-\\d+x' })).text).toMatch(/^[ab]{3}-\d+x$/);
  expect((await ask({ regex: /yes|no/ })).text).toMatch(/^(yes|no)$/);
  expect(['red', 'green', 'blue']).toContain(
    (await ask({ choice: ['red', 'green', 'blue'] })).text,
  );
  const grammar = 'root ::= "(" root ")" | [0-9]{1,3}';
  expect((await ask({ grammar })).text).toMatch(/^\(*\d{1,3}\)*$/);
  const object = await ask({ jsonObject: true });
  if (object.finishReason === 'stop') expect(typeof JSON.parse(object.text)).toBe('object');
});

test('random schemas: finished texts of a hot model are valid', async () => {
  const schemas = Array.from({ length: 24 }, (_, value) => randomSchema(new Seeded(value)));
  const result = await Promise.all(
    schemas.map((schema, value) =>
      only({ prompt: [value], seed: value, format: { schema: schema as object }, ...hot }),
    ),
  );
  let finished = 0;
  for (const [i, { text: one, finishReason }] of result.entries()) {
    if (finishReason !== 'stop') continue;
    finished++;
    expect([i, one, validator(required(schemas[i]))(JSON.parse(one))]).toEqual([i, one, true]);
  }
  expect(finished).toBeGreaterThan(8);
});

test('a Standard Schema gives its JSON schema', async () => {
  const schema = {
    '~standard': { version: 1, vendor: 'test', jsonSchema: { input: () => ({ const: 'sum' }) } },
  };
  expect((await only({ prompt: [1], format: schema, ...hot })).text).toBe('"sum"');
  const bare = { '~standard': { version: 1, vendor: 'zod' } };
  await expect(engine.generate({ prompt: [1], format: bare })).rejects.toThrow(/z\.toJSONSchema/);
});

test('requests with and without formats share steps, samples and the cache', async () => {
  const request = { prompt: 'Hello there', seed: 5, ...hot, n: 3, format: person };
  const plain = { prompt: 'Hello there', seed: 5, temperature: 0, maxNewTokens: 40 };
  const [alone] = await engine.generate(plain);
  const [mixed, formatted] = await Promise.all([
    engine.generate(plain),
    engine.generate({ ...request, repetitionPenalty: 1.1, presencePenalty: 0.5 }),
  ]);
  expect(mixed[0]?.tokens).toEqual(alone?.tokens);
  for (const { text: one, finishReason } of formatted) {
    expect(finishReason).toBe('stop');
    expect(Object.keys(JSON.parse(one))).toEqual(['name', 'age']);
  }
  expect(engine.stats()).toMatchObject({ running: 0, waiting: 0, blocksUsed: 0 });
});

test('the tokens do not depend on the batch, on preemption and on async scheduling', async () => {
  const requests = [1, 2, 3, 4].map((value) => ({
    prompt: [value, 7],
    seed: value,
    format: value % 2 ? person : { regex: '([a-z]+ ){20}' },
    ...hot,
  }));
  const tight = { ...pages, kv_cache: { block_size: 16, blocks: 28 } };
  const texts: string[][] = [];
  for (const settings of [pages, tight, { ...pages, async_scheduling: true }]) {
    const localEngine = await initInference(model, settings, { tokenizer });
    const result = await Promise.all(requests.map((request) => localEngine.generate(request)));
    texts.push(result.map(([one]) => required(one).text));
    await localEngine.destroy();
  }
  expect(texts[1]).toEqual(texts[0]);
  expect(texts[2]).toEqual(texts[0]);
});

test('greedy tokens are the most likely ones that the format allows', async () => {
  const formats = [person, { regex: '([a-z]+ ){20}' }, { jsonObject: true } as const];
  const grammars = new Grammars(tokenizer, sizes.vocabSize);
  const localEngine = await initInference(
    model,
    { ...pages, async_scheduling: true },
    { tokenizer },
  );
  const rules = { maxNewTokens: 24, temperature: 0, stopTokens: [] };
  const free = localEngine.generate({ prompt: [9, 9], ...rules });
  const result = await Promise.all(
    formats.map((format, value) => localEngine.generate({ prompt: [value, 7], format, ...rules })),
  );
  await free;
  await localEngine.destroy();
  const words = new Int32Array(Math.ceil(sizes.vocabSize / 32));
  for (const [one, format] of formats.entries()) {
    const matcher = new Matcher(await grammars.compile(readFormat('test', format)), []);
    const tokens = [one, 7];
    for (const token of required(result[one]?.[0]).tokens) {
      matcher.fill(words);
      const scores = scope(() =>
        noGrad(() => lastOf(model.call(Tensor.from([tokens], { dtype: 'i64' })))),
      );
      const allowed = scores.map((x, t) =>
        (required(words[t >> 5]) >>> (t & 31)) & 1 ? x : -Infinity,
      );
      expect(token).toBe(allowed.indexOf(Math.max(...allowed)));
      matcher.accept(token);
      tokens.push(token);
    }
    expect(tokens.length).toBeGreaterThan(10);
    matcher.dispose();
  }
});

test('requests end while threads fill their masks', async () => {
  const localEngine = await initInference(
    model,
    { ...pages, async_scheduling: true },
    { tokenizer },
  );
  const [stop, left] = [new AbortController(), new AbortController()];
  const format = { regex: '([a-z]+ ){40}' };
  const ask = (value: number, more: object = {}) =>
    localEngine.generate({ prompt: [value, 7], seed: value, ...hot, format, ...more });
  const others = [
    ask(1, { signal: stop.signal }).catch((error: unknown) => error),
    ask(2, { stop: [' '] }),
    ask(3, { maxNewTokens: 3 }),
    ask(4),
  ];
  // Readers of pieces run between the tokens of a step and its masks.
  let pieces = 0;
  for await (const _ of localEngine.stream({ prompt: [5], format, ...hot, signal: left.signal })) {
    if (++pieces === 2) stop.abort();
    if (pieces === 5) left.abort();
  }
  const [aborted, stopped, short, whole] = await Promise.all(others);
  expect(aborted).toBe(stop.signal.reason);
  expect((stopped as inference.Generation[])[0]?.finishReason).toBe('stop');
  expect((short as inference.Generation[])[0]?.tokens).toHaveLength(3);
  expect((whole as inference.Generation[])[0]?.text).toMatch(/^([a-z]+ ?)+$/);
  const { running, waiting, blocksUsed } = localEngine.stats();
  expect([running, waiting, blocksUsed]).toEqual([0, 0, 0]);
  await localEngine.destroy();
});

test('a stream with a format is complete, and ends when its reader leaves', async () => {
  let fullText = '';
  for await (const piece of engine.stream({ prompt: [1], seed: 2, format: person, ...hot })) {
    fullText += piece.text;
  }
  expect(Object.keys(JSON.parse(fullText))).toEqual(['name', 'age']);
  for await (const _ of engine.stream({ prompt: [1], format: person, ...hot })) break;
  expect(engine.stats()).toMatchObject({ running: 0, waiting: 0, blocksUsed: 0 });
});

test.each([
  [{ format: 7 }, /format: expected a JSON schema/],
  [{ format: { type: 'number', multipleOf: 0.1 } }, /#\/multipleOf/],
  [{ format: { not: {} } }, /"not"/],
  [{ format: { regex: '(?=a)' } }, /lookaround/],
  [{ format: { grammar: 'root ::= root "a"' } }, /left recursion/],
  [{ format: person, numBeams: 2 }, /no format with beams/],
  [{ format: { type: 'string', pattern: '^a$', minLength: 3 } }, /matches some text/],
])('refuses %j', async (request, message) => {
  const bad = { prompt: [1], ...request } as inference.GenerateRequest;
  await expect(engine.generate(bad)).rejects.toThrow(message);
});
