// Tests the requests of an engine: abandoned streams, signals, samples, and errors.
import { getEventListeners } from 'node:events';
import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { runInThisContext } from 'node:vm';
import {
  type inference,
  initInference,
  liveTensors,
  nn,
  noGrad,
  seed,
  Tensor,
  text,
} from '../../lib/index.js';
import { packageRoot } from '../../lib/runtime/package-root.js';
import { quiet } from '../support/quiet.js';

const sizes = { vocabSize: 61, maxSeq: 64, layers: 2, heads: 2, channels: 16 };
const small = { max_ragged_sequence_count: 4, kv_cache: { block_size: 16, blocks: 12 } };
const prompt = [3, 1, 4, 1, 5];

let model: nn.models.GPT2;
let engine: inference.InferenceEngine;
let folder: string;

beforeAll(async () => {
  seed(3);
  model = new nn.models.GPT2(sizes);
  engine = await initInference(model, small);
  folder = mkdtempSync(join(tmpdir(), 'ds-requests-'));
});
afterAll(async () => {
  await engine.destroy();
  rmSync(folder, { recursive: true });
});

/** The error of a request, from either API. */
async function refusal(request: object): Promise<unknown> {
  return engine.generate(request as inference.GenerateRequest).then(
    () => null,
    (error: unknown) => error,
  );
}

const isIdle = { running: 0, waiting: 0, blocksUsed: 0 };

test('changed weights find no keys and values of earlier weights', async () => {
  const own = new nn.models.GPT2(sizes);
  const writer = await initInference(own, small);
  const long = Array.from({ length: 20 }, (_, i) => (i * 7) % 61);
  const request = { prompt: long, maxNewTokens: 8, temperature: 0, ignoreEos: true };
  const cached: (number | undefined)[] = [];
  for (let round = 0; round < 3; ++round) {
    for (let again = 0; again < 2; ++again) {
      const [one] = await writer.generate(request);
      expect([...long, ...(one?.tokens ?? [])]).toEqual(
        own.generate(long, { maxNewTokens: 8, temperature: 0 }),
      );
      cached.push(one?.cachedTokens);
    }
    noGrad(() => {
      for (const parameter of own.parameters()) parameter.mul_(-1.5);
    });
  }
  expect(cached).toEqual([0, 16, 0, 16, 0, 16]);
  await writer.destroy();
});

test('generate of the engine and of the model agree', async () => {
  const greedy = { temperature: 0 };
  const [one] = await engine.generate({ prompt, maxNewTokens: 20, ignoreEos: true, ...greedy });
  const expected = model.generate(prompt, { maxNewTokens: 20, ...greedy }).slice(prompt.length);
  expect(one).toMatchObject({
    tokens: expected,
    finishReason: 'length',
    promptTokens: 5,
    text: '',
  });
});

test('a seed gives the same tokens next to any other samples, and samples differ', async () => {
  const request = { prompt, maxNewTokens: 12, seed: 5, ignoreEos: true };
  const [alone] = await engine.generate(request);
  const others = [1, 2, 3].map((seed) => ({ ...request, seed, maxNewTokens: 9 }));
  const among = await engine.generateBatch([...others, request, { ...request, n: 3 }]);
  expect(among[3]?.[0]?.tokens).toEqual(alone?.tokens);
  const texts = among[4]?.map(({ tokens }) => tokens.join()) as string[];
  expect(texts[0]).toBe(alone?.tokens.join());
  expect(new Set(texts).size).toBe(3);
});

test('stop tokens end the output and are part of it; logprobs cover each token', async () => {
  const request = { prompt, maxNewTokens: 12, temperature: 0, logprobs: 2 };
  const [whole] = await engine.generate({ ...request, ignoreEos: true });
  const stop = whole?.tokens[3] as number;
  const end = (whole?.tokens.indexOf(stop) as number) + 1;
  const [one] = await engine.generate({ ...request, stopTokens: [stop], ignoreEos: true });
  expect(one).toMatchObject({ tokens: whole?.tokens.slice(0, end), finishReason: 'stop' });
  expect(one?.logprobs?.length).toBe(end);
  expect(one?.logprobs?.[0]).toMatchObject({
    token: one?.tokens[0],
    top: [{ token: one?.tokens[0] }, {}],
  });
});

test('minTokens above the possible length prevents an early end', async () => {
  const logitBias = { 7: 1000 };
  for (const minTokens of [5, 2 ** 31, Number.MAX_SAFE_INTEGER]) {
    const ends = { stopTokens: [7], ignoreEos: true, maxNewTokens: 5 };
    const [one] = await engine.generate({ prompt, logitBias, minTokens, ...ends });
    expect([one?.tokens.includes(7), one?.finishReason]).toEqual([false, 'length']);
  }
});

test('leaving a stream, and a signal, free the blocks at once', async () => {
  const before = engine.stats().finished.abort;
  let pieces = 0;
  for await (const piece of engine.stream({ prompt, n: 2, ignoreEos: true })) {
    expect(piece.finishReason).toBeNull();
    if (++pieces === 5) break;
  }
  expect(engine.stats()).toMatchObject({ ...isIdle, finished: { abort: before + 2 } });
  const controller = new AbortController();
  const asked = engine.generate({ prompt, signal: controller.signal, ignoreEos: true });
  const other = engine.generate({ prompt: [7], maxNewTokens: 30, ignoreEos: true });
  for await (const _ of engine.stream({ prompt: [9], maxNewTokens: 4, ignoreEos: true }));
  const reason = new Error('enough');
  controller.abort(reason);
  await expect(asked).rejects.toBe(reason);
  expect((await other)[0]).toMatchObject({ finishReason: 'length' });
  expect(engine.stats()).toMatchObject(isIdle);
});

test('generate() of an aborted signal rejects with its reason, a stream ends with "abort"', async () => {
  const signal = AbortSignal.abort();
  const isAbort = expect.objectContaining({ name: 'AbortError' });
  await expect(engine.generate({ prompt, signal })).rejects.toEqual(isAbort);
  const request = { prompt, maxNewTokens: 4, ignoreEos: true };
  await expect(engine.generateBatch([request, { ...request, signal }])).rejects.toEqual(isAbort);
  expect(engine.stats()).toMatchObject(isIdle);
  const ends: unknown[] = [];
  for await (const { finishReason } of engine.stream({ prompt, signal })) ends.push(finishReason);
  expect(ends).toEqual(['abort']);
  const late = new AbortController();
  const [one] = await engine.generate({ ...request, signal: late.signal });
  late.abort();
  expect(one).toMatchObject({ finishReason: 'length' });
});

/** The real process object, which receives the warnings; a jest test file has a copy. */
const node: NodeJS.Process = runInThisContext('process');

test('many requests may share a signal, and remove their listeners at the end', async () => {
  const warnings: Error[] = [];
  const keep = (warning: Error): void => void warnings.push(warning);
  node.on('warning', keep);
  const controller = new AbortController();
  const { signal } = controller;
  const ask = (count: number) =>
    Array.from({ length: count }, () => engine.generate({ prompt, signal, ignoreEos: true }));
  await Promise.all(ask(15));
  expect(getEventListeners(signal, 'abort')).toEqual([]);
  const ended = ask(3);
  controller.abort();
  const ends = await Promise.allSettled(ended);
  expect(ends.map((one) => one.status === 'rejected' && one.reason === signal.reason)).toEqual(
    Array(3).fill(true),
  );
  node.off('warning', keep);
  expect(warnings).toEqual([]);
  expect(getEventListeners(signal, 'abort')).toEqual([]);
  expect(engine.stats()).toMatchObject(isIdle);
});

test('the end token of the tokenizer ends the output, whatever the other files contain', async () => {
  const tokenizer = text.Tokenizer.fromPretrained(join(packageRoot(), 'examples', 'tokenizer'));
  const textModel = new nn.models.GPT2({ ...sizes, vocabSize: tokenizer.vocabSize });
  const own = await initInference(textModel, small, { tokenizer });
  const end = tokenizer.eosId as number;
  expect(textModel.describe().config.eos_token_id).not.toBe(end);
  const request = { prompt, maxNewTokens: 4, logitBias: { [end]: 100 } };
  const [one] = await own.generate(request);
  expect(one).toMatchObject({ tokens: [end], text: '', finishReason: 'stop' });
  const [other] = await own.generate({ ...request, ignoreEos: true });
  expect(other).toMatchObject({ tokens: Array(4).fill(end), finishReason: 'length' });
  await own.destroy();
});

test('end tokens of a config.json that are no token ids are refused, and ids of no token end nothing', async () => {
  const llama = new nn.models.Llama({ ...sizes, hidden: 32 });
  const dir = mkdtempSync(join(tmpdir(), 'ds-ends-'));
  await nn.saveWeights(llama, dir);
  const config = JSON.parse(readFileSync(join(dir, 'config.json'), 'utf8'));
  const start = (name: string, end: unknown): Promise<inference.InferenceEngine> => {
    writeFileSync(join(dir, 'config.json'), JSON.stringify({ ...config, eos_token_id: null }));
    const content = { ...(name === 'config.json' ? config : {}), eos_token_id: end };
    writeFileSync(join(dir, name), JSON.stringify(content));
    return initInference(dir, { device: 'cpu' });
  };
  for (const name of ['config.json', 'generation_config.json']) {
    for (const end of [[1e9, 'a', -1], 'a', [1.5], [null], [[1]], {}, true]) {
      await expect(start(name, end)).rejects.toMatchObject({
        code: 'DS_DATA',
        op: `${name} eos_token_id`,
      });
    }
    const own = await start(name, [1e9, -1, 61]);
    const [one] = await own.generate({ prompt, maxNewTokens: 2, numBeams: 2 });
    expect(one?.tokens).toHaveLength(2);
    await own.destroy();
  }
  rmSync(dir, { recursive: true });
});

test('an engine leaves none of the tables that it has read a model for', async () => {
  const llama = new nn.models.Llama({ ...sizes, hidden: 32 });
  const dir = mkdtempSync(join(tmpdir(), 'ds-tables-'));
  await nn.saveWeights(llama, dir);
  await quiet();
  const before = liveTensors();
  const own = await initInference(dir, { device: 'cpu' });
  await own.generate({ prompt, maxNewTokens: 2 });
  await own.destroy();
  expect(liveTensors()).toBe(before);
  rmSync(dir, { recursive: true });
});

test('a special token in `stop` ends the output without text of its own', async () => {
  const tokenizer = text.Tokenizer.fromPretrained(join(packageRoot(), 'examples', 'tokenizer'));
  const end = tokenizer.tokenToId('<|im_end|>') as number;
  const textModel = new nn.models.GPT2({ ...sizes, vocabSize: tokenizer.vocabSize });
  const own = await initInference(textModel, small, { tokenizer });
  const request = { prompt, maxNewTokens: 6, ignoreEos: true, logitBias: { [end]: 100 } };
  for (const stop of ['<|im_end|>', ['x', '<|im_end|>']]) {
    const [one] = await own.generate({ ...request, stop });
    expect(one).toMatchObject({ tokens: [end], text: '', finishReason: 'stop' });
  }
  const [other] = await own.generate({ ...request, stop: ['<|endoftext|>'] });
  expect(other).toMatchObject({ finishReason: 'length' });
  await own.destroy();
});

test('minTokens holds off stop strings until one is complete behind them', async () => {
  const tokenizer = text.Tokenizer.fromPretrained(join(packageRoot(), 'examples', 'tokenizer'));
  const letter = tokenizer.tokenToId('a') as number;
  const textModel = new nn.models.GPT2({ ...sizes, vocabSize: tokenizer.vocabSize });
  const own = await initInference(textModel, small, { tokenizer });
  const request = { prompt, maxNewTokens: 6, ignoreEos: true, logitBias: { [letter]: 1000 } };
  const ended: unknown[] = [];
  for (const minTokens of [0, 1, 2, 3, 5, 6]) {
    const [one] = await own.generate({ ...request, minTokens, stop: ['aa'] });
    ended.push([minTokens, one?.tokens.length, one?.text, one?.finishReason]);
  }
  expect(ended).toEqual([
    [0, 2, '', 'stop'],
    [1, 2, '', 'stop'],
    [2, 3, 'a', 'stop'],
    [3, 4, 'aa', 'stop'],
    [5, 6, 'aaaa', 'stop'],
    [6, 6, 'aaaaaa', 'length'],
  ]);
  await own.destroy();
});

test.each([
  ['no tokens', { prompt: [] }, 'DS_ARGUMENT', /prompt.*at least one token/],
  ['a text without a tokenizer', { prompt: 'hi' }, 'DS_ARGUMENT', /tokens, for an engine without/],
  ['a token that is none', { prompt: [3, 61] }, 'DS_ARGUMENT', /0 to 60, got 61 at 1/],
  ['a long prompt', { prompt: Array(64).fill(1) }, 'DS_LIMIT', /at most 64 .*prompt of 64 and 1/],
  ['many new tokens', { prompt, maxNewTokens: 60 }, 'DS_LIMIT', /prompt of 5 and 60 new/],
  ['a stop without a tokenizer', { prompt, stop: ['a'] }, 'DS_ARGUMENT', /stopTokens/],
  [
    'a stop that is none',
    { prompt, stop: null },
    'DS_ARGUMENT',
    /stop: expected a string or a list/,
  ],
  ['an option that is none', { prompt, maxTokens: 3 }, 'DS_ARGUMENT', /maxNewTokens/],
  ['a temperature', { prompt, temperature: -1 }, 'DS_ARGUMENT', /temperature/],
  ['no continuation', { prompt, n: 0 }, 'DS_ARGUMENT', /n: expected/],
  ['a signal', { prompt, signal: {} }, 'DS_ARGUMENT', /AbortSignal/],
])('%s is refused', async (_, request, code, message) => {
  expect(await refusal(request)).toMatchObject({ code, message: expect.stringMatching(message) });
  expect(engine.stats()).toMatchObject(isIdle);
});

test('the cache limits the length, and a request that cannot fit is refused', async () => {
  const tight = await initInference(model, { kv_cache: { block_size: 16, blocks: 2 } });
  expect(tight.maxTokens).toBe(32);
  const [whole] = await tight.generate({ prompt, maxNewTokens: 27, ignoreEos: true });
  expect(whole?.tokens.length).toBe(32 - prompt.length);
  await expect(tight.generate({ prompt, maxNewTokens: 40 })).rejects.toMatchObject({
    code: 'DS_LIMIT',
    message: expect.stringMatching(/at most 32 tokens.*a prompt of 5 and 40 new ones/),
  });
  await tight.destroy();
});

test('an error of a step ends only its requests, and the engine continues', async () => {
  const failing = new Error('told too early');
  const onStart = (): void => {
    throw failing;
  };
  const other = engine.generate({ prompt, maxNewTokens: 3 });
  await expect(engine.generate({ prompt, onStart })).rejects.toBe(failing);
  expect((await other)[0]?.tokens.length).toBeGreaterThan(0);
  const weight = model.transformer.ln_f.weight;
  const values = weight.toArray();
  noGrad(() => weight.fill_(Number.NaN));
  expect(await refusal({ prompt })).toMatchObject({ code: 'DS_NONFINITE' });
  noGrad(() => weight.copy_(Tensor.from(values)));
  expect(engine.stats()).toMatchObject(isIdle);
  expect((await engine.generate({ prompt, maxNewTokens: 2, ignoreEos: true }))[0]).toMatchObject({
    finishReason: 'length',
  });
});

test('a request that fails before its first step does not affect waiting ones', async () => {
  const one = await initInference(model, { ...small, max_ragged_sequence_count: 1 });
  const onStart = (): void => {
    throw new Error('told too early');
  };
  const failed = one.generate({ prompt, onStart });
  const waiting = one.generate({ prompt, maxNewTokens: 3, ignoreEos: true });
  await expect(failed).rejects.toThrow('told too early');
  expect((await waiting)[0]).toMatchObject({ finishReason: 'length' });
  await one.destroy();
});

test('an engine call computes logits, and modelTimes() returns their times', async () => {
  expect(() => engine.modelTimes()).toThrow(expect.objectContaining({ code: 'DS_ARGUMENT' }));
  engine.profileModelTime();
  const tokens = Tensor.from([[3, 1, 4]], { dtype: 'i32' });
  const logits = engine.call(tokens);
  expect(logits.shape).toEqual([1, 3, 61]);
  await engine.generate({ prompt, maxNewTokens: 4, ignoreEos: true });
  expect(engine.modelTimes().length).toBe(5);
  expect(engine.modelTimes()).toEqual([]);
  logits.dispose();
});

test('a destroyed engine refuses requests', async () => {
  const gone = await initInference(new nn.models.GPT2(sizes), small);
  const asked = gone.generate({ prompt, ignoreEos: true });
  await gone.destroy();
  await gone.destroy();
  expect((await asked)[0]).toMatchObject({ finishReason: 'abort' });
  await expect(gone.generate({ prompt })).rejects.toMatchObject({ code: 'DS_RELEASED' });
});

test.each([
  [{ max_out_token: 3 }, /max_out_tokens/],
  [{ max_out_tokens: 65 }, /at most 64/],
  [{ kv_cache: { memory: 100 } }, /room for 0/],
])('configuration %j is refused', async (config, message) => {
  const code = message.source.includes('room') ? 'DS_LIMIT' : 'DS_CONFIG';
  await expect(initInference(model, config as inference.InferenceConfig)).rejects.toMatchObject({
    code,
    message: expect.stringMatching(message),
  });
});

test('angles that follow from the length of a text end where they change', async () => {
  const ropeScaling = { type: 'dynamic', factor: 2, originalMaxSeq: 24 } as const;
  const { layers, heads, channels, vocabSize } = sizes;
  const given = { vocabSize, maxSeq: 48, layers, heads, channels, hidden: 24, ropeScaling };
  const stretched = new nn.models.Llama(given);
  const refused = initInference(stretched, { max_out_tokens: 25 });
  await expect(refused).rejects.toMatchObject({ message: expect.stringContaining('at most 24') });
  const own = await initInference(stretched);
  expect(own.maxTokens).toBe(24);
  const [one] = await own.generate({ prompt, temperature: 0, ignoreEos: true });
  const expected = stretched.generate(prompt, { maxNewTokens: 19, temperature: 0 });
  expect(one?.tokens).toEqual(expected.slice(prompt.length));
  await own.destroy();
});

test('an engine for texts longer than the first length reads all with the angles of long ones', async () => {
  const { layers, heads, channels, vocabSize } = sizes;
  const given = {
    vocabSize,
    maxSeq: 48,
    layers,
    heads,
    channels,
    hidden: 24,
    initializerRange: 0.4,
  };
  const longFactor = Array.from({ length: channels / heads / 2 }, (_, i) => 2 + 5 * i);
  const shortFactor = longFactor.map(() => 1);
  const longrope = { type: 'longrope', factor: 2, originalMaxSeq: 24, longFactor } as const;
  const model = (short: number[]) => {
    seed(3);
    return new nn.models.Phi3({ ...given, ropeScaling: { ...longrope, shortFactor: short } });
  };
  const [switching, steady] = [model(shortFactor), model(longFactor)];
  const plain = await initInference(switching);
  expect(plain.maxTokens).toBe(24);
  await plain.destroy();
  const own = await initInference(switching, { max_out_tokens: 48 });
  for (const text of [prompt, [...prompt, ...prompt, ...prompt, ...prompt]]) {
    const maxNewTokens = 48 - text.length;
    const [one] = await own.generate({
      prompt: text,
      maxNewTokens,
      temperature: 0,
      ignoreEos: true,
    });
    const expected = steady.generate(text, { maxNewTokens, temperature: 0 });
    expect(one?.tokens).toEqual(expected.slice(text.length));
  }
  const texts = [switching, steady].map((one) => one.generate(prompt, { maxNewTokens: 15 }));
  expect(texts[0]).not.toEqual(texts[1]);
  await own.destroy();
});

test('a text that is certainly too long is refused before it is tokenized', async () => {
  const source = join(__dirname, '../golden/transformers/tokenizers/llama3');
  const tokenizer = text.Tokenizer.fromPretrained(source);
  const speaker = new nn.models.GPT2({ ...sizes, vocabSize: tokenizer.vocabSize });
  const own = await initInference(speaker, {}, { tokenizer });
  const encode = jest.spyOn(tokenizer, 'encode');
  await expect(own.generate({ prompt: 'Once upon '.repeat(1e4) })).rejects.toMatchObject({
    code: 'DS_LIMIT',
    got: expect.stringMatching(/^a prompt of at least \d+$/),
  });
  expect(encode).not.toHaveBeenCalled();
  await own.destroy();
});

test('accepts a tokenizer as an object or as its folder', async () => {
  const source = join(__dirname, '../golden/transformers/tokenizers/llama3');
  const tokenizer = text.Tokenizer.fromPretrained(source);
  const speaker = new nn.models.GPT2({ ...sizes, vocabSize: tokenizer.vocabSize });
  for (const given of [tokenizer, source]) {
    const own = await initInference(speaker, {}, { tokenizer: given });
    const [one] = await own.generate({ prompt: 'Once upon', maxNewTokens: 3, ignoreEos: true });
    expect(one?.promptTokens).toBe(tokenizer.encode('Once upon').length);
    expect(one?.text).toBe(tokenizer.decode([...(one?.tokens ?? [])], { skipSpecialTokens: true }));
    await own.destroy();
  }
  const narrow = await initInference(model, {}, { tokenizer: source });
  await expect(narrow.generate({ prompt: 'Once upon' })).rejects.toThrow(
    /prompt: expected tokens from 0 to 60, got \d+ at 0/,
  );
  await narrow.destroy();
  const odd = { tokenizer: 3 as unknown as string };
  await expect(initInference(model, {}, odd)).rejects.toMatchObject({ code: 'DS_ARGUMENT' });
  const absent = { tokenizer: join(folder, 'absent') };
  await expect(initInference(model, {}, absent)).rejects.toMatchObject({ code: 'DS_DATA' });
});

test('output continues the prompt, or starts a text with beginsText', async () => {
  const source = join(__dirname, '../golden/transformers/tokenizers/llama2');
  const tokenizer = text.Tokenizer.fromPretrained(source);
  const speaker = new nn.models.GPT2({ ...sizes, vocabSize: tokenizer.vocabSize });
  const own = await initInference(speaker, {}, { tokenizer });
  const model = tokenizer.tokenToId('▁model') as number;
  const request = { prompt: 'the', logitBias: { [model]: 1000 }, maxNewTokens: 2 };
  for (const more of [{}, { numBeams: 2 }]) {
    const [one] = await own.generate({ ...request, ...more });
    const [answer] = await own.generate({ ...request, ...more, beginsText: true });
    expect([one?.text, answer?.text]).toEqual([' model model', 'model model']);
  }
  const pieces: string[] = [];
  for await (const piece of own.stream({ ...request, n: 1 })) pieces.push(piece.text);
  expect(pieces).toEqual([' model', ' model']);
  await expect(own.generate({ ...request, beginsText: 1 as never })).rejects.toThrow(/beginsText/);
  await own.destroy();
});

test('a folder provides its tokenizer: text in and out, stop strings across tokens', async () => {
  const source = join(__dirname, '../golden/transformers/tokenizers/llama3');
  const { vocabSize } = text.Tokenizer.fromPretrained(source);
  const speaker = new nn.models.GPT2({ ...sizes, vocabSize: vocabSize + 300 });
  await speaker.save(folder);
  cpSync(source, folder, { recursive: true });
  const own = await initInference(folder, { dtype: 'fp32', device: 'cpu' });
  const request = { prompt: 'Once upon', maxNewTokens: 24, temperature: 0, ignoreEos: true };
  const [whole] = await own.generate({ ...request, temperature: 3, seed: 1 });
  const output = whole?.text as string;
  // The head is wider than the vocabulary: the extra tokens have no text.
  const spelled = whole?.tokens.filter((token) => token < vocabSize);
  expect(spelled?.length).toBeLessThan(24);
  expect(output).toBe(own.tokenizer?.decode(spelled as number[], { skipSpecialTokens: true }));
  expect(whole?.promptTokens).toBe(own.tokenizer?.encode('Once upon').length);
  const stop = output.slice(7, 12);
  const pieces: string[] = [];
  let reason: string | null = null;
  for await (const piece of own.stream({ ...request, temperature: 3, seed: 1, stop })) {
    pieces.push(piece.text);
    reason = piece.finishReason;
  }
  expect([pieces.join(''), reason]).toEqual([output.slice(0, output.indexOf(stop)), 'stop']);
  await own.destroy();
});
