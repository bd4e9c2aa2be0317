// Structured output by each client, from a model with random weights: only the grammar makes its
// answers valid.
import { type InferenceEngine, initInference, nn } from '../../lib/index.js';
import { type InferenceServer, serve } from '../../lib/serve/index.js';
import { tokenizer } from '../serve/fake-engine.js';
import { HERMES } from '../serve/scripted-engine.js';
import { type Any, all, MODEL } from './scripted.js';

const { OpenAI } = require('openai') as Any;
const { zodResponseFormat, zodTextFormat } = require('openai/helpers/zod') as Any;
const { generateObject, generateText, streamObject, tool } = require('ai') as Any;
const { createOpenAI } = require('@ai-sdk/openai') as Any;
const { createOpenAICompatible } = require('@ai-sdk/openai-compatible') as Any;
const { ChatOpenAI } = require('@langchain/openai') as Any;
const agents = require('@openai/agents') as Any;
const { z } = require('zod') as Any;

const CONFIG = {
  model_type: 'llama',
  vocab_size: 1007,
  hidden_size: 32,
  num_hidden_layers: 2,
  num_attention_heads: 2,
  intermediate_size: 64,
  max_position_embeddings: 2048,
};
let engine: InferenceEngine;
let server: InferenceServer;
let baseURL = '';

beforeAll(async () => {
  const model = nn.models.fromConfig(CONFIG);
  engine = await initInference(model, { device: 'cpu', max_out_tokens: 2048 }, { tokenizer });
  // Random weights would begin to reason and not end it.
  const parsers = { reasoningParser: 'none' } as const;
  server = await serve(engine, { port: 0, model: MODEL, chatTemplate: HERMES, ...parsers });
  baseURL = `${server.url}/v1`;
});
afterAll(async () => {
  await server.kill();
  await engine.destroy();
});

const Weather = z.object({
  city: z.enum(['Paris', 'Rome']),
  rain: z.boolean(),
  days: z.array(z.enum(['Monday', 'Sunday'])).max(2),
});
const prompt = 'How is the weather?';
const messages = [{ role: 'user', content: prompt }];
const client = () => new OpenAI({ baseURL, apiKey: 'none', maxRetries: 0 });

test('openai: parse and stream of a chat', async () => {
  const body = { model: MODEL, messages, response_format: zodResponseFormat(Weather, 'weather') };
  const { choices } = await client().chat.completions.parse(body);
  expect(Weather.safeParse(choices[0].message.parsed).success).toBe(true);
  const stream = client().chat.completions.stream(body);
  const streamed = await stream.finalChatCompletion();
  expect(Weather.safeParse(streamed.choices[0].message.parsed).success).toBe(true);
});

test('openai: parse and stream of a response', async () => {
  const text = { format: zodTextFormat(Weather, 'weather') };
  const body = { model: MODEL, input: prompt, text };
  const { output_parsed: parsed } = await client().responses.parse(body);
  expect(Weather.safeParse(parsed).success).toBe(true);
  const streamed = await client().responses.stream(body).finalResponse();
  expect(Weather.safeParse(streamed.output_parsed).success).toBe(true);
});

test('openai: a cut answer makes parse() throw', async () => {
  const format = { response_format: zodResponseFormat(Weather, 'weather') };
  const body = { model: MODEL, messages, max_tokens: 3, ...format };
  await expect(client().chat.completions.parse(body)).rejects.toThrow(/length/i);
});

describe('ai', () => {
  const models: Record<string, () => Any> = {
    responses: () => createOpenAI({ baseURL, apiKey: 'none' })(MODEL),
    chat: () => createOpenAI({ baseURL, apiKey: 'none' }).chat(MODEL),
    compatible: () =>
      createOpenAICompatible({ name: 'ds', baseURL, supportsStructuredOutputs: true })(MODEL),
  };
  test.each(Object.keys(models))('objects by %s, whole and streamed', async (name) => {
    const common = { model: models[name]?.(), schema: Weather, prompt, maxRetries: 0 };
    const { object } = await generateObject(common);
    expect(Weather.safeParse(object).success).toBe(true);
    const { object: last, partialObjectStream } = streamObject(common);
    const partial = await all(partialObjectStream);
    expect(partial.length).toBeGreaterThan(0);
    expect(Weather.safeParse(await last).success).toBe(true);
  });
  test.each(Object.keys(models))('a required tool by %s', async (name) => {
    const report = tool({ description: 'Reports', inputSchema: Weather });
    const { toolCalls } = await generateText({
      model: models[name]?.(),
      prompt,
      tools: { report },
      maxRetries: 0,
      toolChoice: 'required',
    });
    expect(
      toolCalls.map((toolCall: Any) => [toolCall.toolName, toolCall.invalid ?? false]),
    ).toEqual([['report', false]]);
    expect(Weather.safeParse(toolCalls[0].input).success).toBe(true);
  });
});

test.each(['jsonSchema', 'functionCalling'])(
  'langchain: withStructuredOutput by %s',
  async (method) => {
    const fields = { model: MODEL, apiKey: 'none', maxRetries: 0, configuration: { baseURL } };
    const model = new ChatOpenAI(fields).withStructuredOutput(Weather, { name: 'weather', method });
    expect(Weather.safeParse(await model.invoke(prompt)).success).toBe(true);
  },
);

test.each([true, false])('agents: an output type (useResponses: %s)', async (useResponses) => {
  const modelProvider = new agents.OpenAIProvider({ openAIClient: client(), useResponses });
  const runner = new agents.Runner({ modelProvider, tracingDisabled: true });
  const agent = new agents.Agent({ name: 'Weather', model: MODEL, outputType: Weather });
  const { finalOutput } = await runner.run(agent, prompt);
  expect(Weather.safeParse(finalOutput).success).toBe(true);
});

test('a schema that no grammar expresses is 400 with its field', async () => {
  const schema = { type: 'object', properties: { a: { not: { type: 'null' } } } };
  const response_format = { type: 'json_schema', json_schema: { name: 'odd', schema } };
  const refused = client().chat.completions.create({ model: MODEL, messages, response_format });
  await expect(refused).rejects.toMatchObject({ status: 400, param: 'response_format' });
});
