// The package of OpenAI against the server: its requests, and its reading of answers.
import { type InferenceServer, serve } from '../../lib/serve/index.js';
import { FakeEngine, textOf, tokenizer } from './fake-engine.js';

// biome-ignore lint/suspicious/noExplicitAny: programs in plain JavaScript use it so.
const { OpenAI } = require('openai') as any;

const engine = new FakeEngine(tokenizer);
let server: InferenceServer;
let client: typeof OpenAI;

beforeAll(async () => {
  server = await serve(engine, { port: 0, model: 'tiny', apiKeys: ['key'] });
  client = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: 'key', maxRetries: 0 });
});
afterAll(() => server.stop());

const model = 'tiny';
const messages = [{ role: 'user' as const, content: 'Hello' }];
const ids = tokenizer.applyChatTemplate(messages, { addGenerationPrompt: true }).ids;
const firstTokens = (count: number) => textOf(Array.from(ids), 0, count);

test('models', async () => {
  const { data } = await client.models.list();
  expect(data.map(({ id }: { id: string }) => id)).toEqual([model]);
  expect(await client.models.retrieve(model)).toMatchObject({ owned_by: 'ds' });
});

test('a chat has one text, whole or streamed', async () => {
  const body = { model, messages, max_completion_tokens: 12, seed: 3 };
  const whole = await client.chat.completions.create(body);
  expect(whole.choices[0]?.message.content).toBe(firstTokens(12));
  expect(whole.usage?.total_tokens).toBe(ids.length + 12);
  const usage = { include_usage: true };
  const stream = client.chat.completions.stream({ ...body, stream_options: usage });
  const { choices, usage: counted } = await stream.finalChatCompletion();
  expect(choices[0]).toMatchObject({
    message: { content: firstTokens(12) },
    finish_reason: 'length',
  });
  expect(counted).toEqual(whole.usage);
});

test('a completion, whole and streamed', async () => {
  const body = { model, prompt: [1, 2], max_tokens: 12 };
  const whole = await client.completions.create(body);
  expect(whole.choices[0]?.text).toBe(textOf([1, 2], 0, 12));
  let text = '';
  for await (const chunk of await client.completions.create({ ...body, stream: true })) {
    text += chunk.choices[0]?.text ?? '';
  }
  expect(text).toBe(textOf([1, 2], 0, 12));
});

test('errors are of the classes that programs catch', async () => {
  const wrong = client.chat.completions.create({ model, messages, temperature: 3 });
  await expect(wrong).rejects.toThrow(OpenAI.BadRequestError);
  await expect(wrong).rejects.toMatchObject({ status: 400, param: 'temperature' });
  const other = client.completions.create({ model: 'other', prompt: 'x' });
  await expect(other).rejects.toMatchObject({ status: 404, code: 'model_not_found' });
  const stranger = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: 'no', maxRetries: 0 });
  await expect(stranger.models.list()).rejects.toThrow(OpenAI.AuthenticationError);
  engine.failAt = { place: 9, error: new Error('broken') };
  const report = jest.spyOn(console, 'error').mockImplementation();
  const half = await client.chat.completions.create({ model, messages, stream: true });
  const read = async () => {
    for await (const _ of half);
  };
  await expect(read()).rejects.toThrow(OpenAI.APIError);
  expect(report).toHaveBeenCalledWith(engine.failAt.error);
  report.mockRestore();
  engine.failAt = null;
});

test('leaving a stream frees the request', async () => {
  const aborted = engine.aborted;
  engine.pace = () => new Promise((resolve) => setTimeout(resolve, 1));
  const stream = await client.chat.completions.create({ model, messages, stream: true });
  for await (const _ of stream) break;
  while (engine.active > 0) await new Promise((resolve) => setTimeout(resolve, 2));
  expect(engine.aborted).toBe(aborted + 1);
});
