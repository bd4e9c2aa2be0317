// Forced calls: a model with random weights calls the function that the request demands, with
// arguments of its schema.
import Ajv from 'ajv';
import { type InferenceEngine, initInference, nn } from '../../lib/index.js';
import { type InferenceServer, serve } from '../../lib/serve/index.js';
import { callSchema } from '../../lib/text/tool-calls/call-schema.js';
import { ask, eventsOf } from './client.js';
import { tokenizer } from './fake-engine.js';
import { HERMES } from './scripted-engine.js';

const LLAMA = {
  model_type: 'llama',
  vocab_size: 1007,
  hidden_size: 32,
  num_hidden_layers: 2,
  num_attention_heads: 2,
  intermediate_size: 64,
  max_position_embeddings: 1024,
};
let engine: InferenceEngine;
let server: InferenceServer;
let url: string;

beforeAll(async () => {
  const model = nn.models.fromConfig(LLAMA);
  engine = await initInference(model, { device: 'cpu', max_out_tokens: 1024 }, { tokenizer });
  // The prompt opens reasoning: a forced call must close it.
  const chatTemplate = `${HERMES}{% if add_generation_prompt %}<think>\n{% endif %}`;
  server = await serve(engine, { port: 0, chatTemplate });
  url = `${server.url}/v1`;
});
afterAll(async () => {
  await server.kill();
  await engine.destroy();
});

const weather = {
  type: 'object',
  properties: {
    city: { enum: ['Paris', 'Rome'] },
    days: { type: 'array', items: { $ref: '#/$defs/day' }, maxItems: 3 },
  },
  required: ['city', 'days'],
  additionalProperties: false,
  $defs: { day: { enum: ['Monday', 'Sunday'] } },
};
const light = {
  type: 'object',
  properties: { on: { type: 'boolean' } },
  required: ['on'],
  additionalProperties: false,
};
const tools = [
  { type: 'function', function: { name: 'weather', parameters: weather } },
  { type: 'function', function: { name: 'light', parameters: light } },
] as const;
const messages = [{ role: 'user', content: 'Do it.' }];
const ajv = new Ajv();
const checks = { weather: ajv.compile(weather), light: ajv.compile(light) };

interface Call {
  function: { name: keyof typeof checks; arguments: string };
}

function expectValid({ function: { name, arguments: text } }: Call): void {
  const isValid = checks[name](JSON.parse(text));
  expect({ text, isValid }).toEqual({ text, isValid: true });
}

const chat = async (fields: object) => {
  const body = { messages, tools, temperature: 1.5, ...fields };
  return ask(`${url}/chat/completions`, { body });
};

test('required: a call of one of the functions, for every seed', async () => {
  const names = new Set<string>();
  for (let seed = 1; seed <= 8; ++seed) {
    const { json } = await chat({ tool_choice: 'required', seed });
    const [{ message, finish_reason: reason }] = json.choices;
    expect([reason, message.content, message.tool_calls.length]).toEqual(['tool_calls', null, 1]);
    expectValid(message.tool_calls[0]);
    names.add(message.tool_calls[0].function.name);
  }
  expect(names.size).toBe(2);
});

test('a named function, whole and streamed: the reason is stop', async () => {
  const tool_choice = { type: 'function', function: { name: 'weather' } };
  const { json } = await chat({ tool_choice, seed: 3 });
  const [{ message, finish_reason: reason }] = json.choices;
  expect([reason, message.tool_calls[0].function.name]).toEqual(['stop', 'weather']);
  expectValid(message.tool_calls[0]);
  const { text } = await chat({ tool_choice, seed: 3, stream: true });
  const { events } = eventsOf(text);
  const toolCalls = events.flatMap(({ choices }) => choices[0].delta.tool_calls ?? []);
  const joined = toolCalls.map((toolCall) => toolCall.function.arguments).join('');
  expect(joined).toBe(message.tool_calls[0].function.arguments);
  expect(events.at(-1).choices[0].finish_reason).toBe('stop');
});

test('/v1/responses forces calls too', async () => {
  const [{ function: own }] = tools;
  const body = {
    input: 'Do it.',
    temperature: 1.5,
    seed: 1,
    tools: [{ type: 'function', ...own }],
    tool_choice: { type: 'function', name: 'weather' },
  };
  const { json } = await ask(`${url}/responses`, { body });
  const [item] = json.output;
  expect(item).toMatchObject({ type: 'function_call', name: 'weather' });
  expect(checks.weather(JSON.parse(item.arguments))).toBe(true);
});

test('a schema that no grammar expresses is 400', async () => {
  const parameters = { type: 'object', properties: { a: { not: { type: 'string' } } } };
  const odd = [{ type: 'function', function: { name: 'f', parameters } }];
  const { status, json } = await chat({ tools: odd, tool_choice: 'required' });
  expect([status, json.error.type]).toEqual([400, 'invalid_request_error']);
  expect(json.error.message).toMatch(/not/);
});

test('references of a schema point to its new place', () => {
  expect(callSchema([tools[0]], 'parameters')).toEqual({
    type: 'object',
    required: ['name', 'parameters'],
    additionalProperties: false,
    properties: { name: { const: 'weather' }, parameters: { $ref: '#/$defs/call_0' } },
    $defs: {
      call_0: {
        ...weather,
        properties: {
          ...weather.properties,
          days: { type: 'array', items: { $ref: '#/$defs/call_0/$defs/day' }, maxItems: 3 },
        },
      },
    },
  });
});
