// Logprobs of prompts: echo with logprobs, as lm-evaluation-harness asks for them.
import { type InferenceEngine, initInference, nn, Tensor } from '../../lib/index.js';
import { type InferenceServer, serve } from '../../lib/serve/index.js';
import { ask } from './client.js';
import { tokenizer } from './fake-engine.js';

const LLAMA = {
  model_type: 'llama',
  vocab_size: 1007,
  hidden_size: 32,
  num_hidden_layers: 2,
  num_attention_heads: 2,
  intermediate_size: 64,
  max_position_embeddings: 1024,
};
let model: nn.models.CausalLM;
let engine: InferenceEngine;
let server: InferenceServer;

beforeAll(async () => {
  model = nn.models.fromConfig(LLAMA) as nn.models.CausalLM;
  engine = await initInference(model, { device: 'cpu', max_out_tokens: 1024 }, { tokenizer });
  server = await serve(engine, { port: 0, model: 'tiny' });
});
afterAll(async () => {
  await server.kill();
  await engine.destroy();
});

const complete = (body: object) =>
  ask(`${server.url}/v1/completions`, { body: { temperature: 0, max_tokens: 1, ...body } });

/** Log-softmax of the model's logits, [T][V]. */
function expectedOf(tokens: readonly number[]): number[][] {
  const ids = Tensor.from(Int32Array.from(tokens), { shape: [1, tokens.length] });
  const logits = engine.call(ids);
  const values = logits.toArray();
  const width = logits.size(2);
  for (const tensor of [ids, logits]) tensor.dispose();
  return tokens.map((_, row) => {
    const localValues = values.slice(row * width, (row + 1) * width);
    const largest = Math.max(...localValues);
    const sum =
      largest +
      Math.log(localValues.reduce((total, value) => total + Math.exp(value - largest), 0));
    return localValues.map((value) => value - sum);
  });
}

// 300 tokens take two pieces of rows.
test.each([4, 300])('%i tokens of a prompt, and one of the answer', async (count) => {
  const tokens = Array.from({ length: count }, (_, i) => 40 + ((i * 37) % 900));
  const { json } = await complete({ prompt: [tokens], echo: true, logprobs: 1 });
  const [{ text, logprobs, finish_reason: reason }] = json.choices;
  const expected = expectedOf(tokens);
  expect(reason).toBe('length');
  expect(text.startsWith(tokenizer.decode(tokens))).toBe(true);
  expect(logprobs.tokens).toHaveLength(count + 1);
  expect([logprobs.token_logprobs[0], logprobs.top_logprobs[0]]).toEqual([null, null]);
  for (let i = 1; i < count; ++i) {
    const row = expected[i - 1] as number[];
    expect(logprobs.token_logprobs[i]).toBeCloseTo(row[tokens[i] as number] as number, 4);
    const top: number[] = Object.values(logprobs.top_logprobs[i]);
    expect(Math.max(...top)).toBeCloseTo(Math.max(...row), 4);
  }
  expect(json.usage).toMatchObject({ prompt_tokens: count, completion_tokens: 1 });
});

test('a greedy token has exactly the largest value', async () => {
  const [answer] = await engine.generate({ prompt: [50, 60, 70], maxNewTokens: 5, temperature: 0 });
  const tokens = [50, 60, 70, ...(answer?.tokens ?? [])];
  const { json } = await complete({ prompt: tokens, echo: true, logprobs: 1 });
  const { token_logprobs: own, top_logprobs: top } = json.choices[0].logprobs;
  for (let i = 3; i < tokens.length; ++i) {
    expect(own[i]).toBe(Math.max(...(Object.values(top[i]) as number[])));
  }
});

test('max_tokens 0 with echo computes no token', async () => {
  const body = { prompt: ['Hello there', 'Bye'], echo: true, max_tokens: 0 };
  const { json } = await complete({ ...body, logprobs: 0 });
  expect(json.choices.map(({ text }: { text: string }) => text)).toEqual(['Hello there', 'Bye']);
  expect(json.usage.completion_tokens).toBe(0);
  const { tokens, token_logprobs: values } = json.choices[0].logprobs;
  expect([tokens.join(''), values.length]).toEqual(['Hello there', tokens.length]);
  const plain = await complete(body);
  expect(plain.json.choices[1]).toMatchObject({ text: 'Bye', finish_reason: 'length' });
  const without = await complete({ prompt: 'Hello', max_tokens: 0 });
  expect([without.status, without.json.error.param]).toEqual([400, 'max_tokens']);
});

test('the description of the tokenizer, and the fields of a model', async () => {
  const { json } = await ask(`${server.url}/tokenizer_info`);
  expect(json).toMatchObject({
    eos_token: '<|im_end|>',
    pad_token: '<|endoftext|>',
    bos_token: null,
    chat_template: expect.stringContaining('tools'),
  });
  const { json: list } = await ask(`${server.url}/v1/models`);
  expect(list.data[0]).toEqual({
    id: 'tiny',
    object: 'model',
    created: expect.any(Number),
    owned_by: 'ds',
    root: 'tiny',
    parent: null,
    max_model_len: 1024,
  });
});
