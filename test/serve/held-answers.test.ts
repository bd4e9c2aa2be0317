// Formats after reasoning, and calls of strict functions: the format of the engine and the answer.
import { type InferenceServer, serve } from '../../lib/serve/index.js';
import { ask, eventsOf } from './client.js';
import { HERMES, ScriptedEngine } from './scripted-engine.js';

const OPENS = `${HERMES}{% if add_generation_prompt and enable_thinking is not defined %}<think>\n{% endif %}`;
const schema = { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] };
const response_format = { type: 'json_schema', json_schema: { name: 'city', schema } };
const messages = [{ role: 'user', content: 'Where?' }];
const FORMATTED = '{"city": "Rome"}';
const THOUGHT = `Rome or Oslo?</think>\n\n${FORMATTED}`;
const go = (strict?: boolean, parameters: object = schema) => ({
  type: 'function',
  function: { name: 'go', parameters, ...(strict !== undefined && { strict }) },
});

let engine: ScriptedEngine;
let server: InferenceServer;

async function start(chatTemplate: string): Promise<void> {
  engine = new ScriptedEngine();
  server = await serve(engine, { port: 0, chatTemplate });
}
afterEach(() => server.kill());

const chat = (body: object) =>
  ask(`${server.url}/v1/chat/completions`, { body: { messages, ...body } });
const lastFormat = () => engine.requests.at(-1)?.format;

test('reasoning that the prompt opens stays free, and the content is the formatted text', async () => {
  await start(OPENS);
  engine.answers.push(THOUGHT);
  const { json } = await chat({ response_format });
  expect(json.choices[0].message).toMatchObject({
    content: FORMATTED,
    reasoning_content: 'Rome or Oslo?',
  });
  expect(lastFormat()).toEqual({
    '~answer': { reasoning: { begin: null, end: '</think>' }, calls: null, format: { schema } },
  });
  expect(engine.lastPrompt).toMatch(/<think>\n$/);
});

test('a stream has the same parts', async () => {
  await start(OPENS);
  engine.answers.push(THOUGHT);
  const { text } = await chat({ response_format, stream: true });
  const deltas = eventsOf(text).events.map(({ choices }) => choices[0].delta);
  const joinDeltas = (key: string) => deltas.map((delta) => delta[key] ?? '').join('');
  expect([joinDeltas('reasoning_content'), joinDeltas('content')]).toEqual([
    'Rome or Oslo?',
    FORMATTED,
  ]);
});

test('a closed pair in the prompt leaves the plain format', async () => {
  await start(OPENS);
  engine.answers.push(FORMATTED);
  const { json } = await chat({
    response_format,
    chat_template_kwargs: { enable_thinking: false },
  });
  expect(json.choices[0].message.content).toBe(FORMATTED);
  expect(lastFormat()).toEqual({ schema });
});

test('reasoning that the model may begin is optional', async () => {
  await start(HERMES);
  engine.answers.push(`<think>${THOUGHT}`, FORMATTED);
  const first = await chat({ response_format });
  expect(first.json.choices[0].message.content).toBe(FORMATTED);
  expect(lastFormat()).toMatchObject({ '~answer': { reasoning: { begin: '<think>' } } });
  const second = await chat({ response_format });
  expect(second.json.choices[0].message.content).toBe(FORMATTED);
});

test('/v1/responses gives the same parts', async () => {
  await start(OPENS);
  engine.answers.push(THOUGHT);
  const format = { type: 'json_schema', name: 'city', schema };
  const body = { input: 'Where?', text: { format } };
  const { json } = await ask(`${server.url}/v1/responses`, { body });
  const message = json.output.find(({ type }: { type: string }) => type === 'message');
  expect(message.content[0].text).toBe(FORMATTED);
  expect(lastFormat()).toMatchObject({ '~answer': { format: { schema } } });
});

test('calls of strict functions are held to their schema under auto; others are not', async () => {
  await start(HERMES);
  const CALL = '<tool_call>\n{"name": "go", "arguments": {"city": "Rome"}}\n</tool_call>';
  engine.answers.push(CALL, CALL);
  const { json } = await chat({ tools: [go(true)], parallel_tool_calls: false });
  expect(json.choices[0].message.tool_calls[0].function.arguments).toBe('{"city": "Rome"}');
  expect(lastFormat()).toMatchObject({
    '~answer': {
      calls: { begin: '<tool_call>', end: '</tool_call>', isSingle: true },
      format: null,
    },
  });
  await chat({ tools: [go()] });
  expect(lastFormat()).toBeUndefined();
  await chat({ tools: [go(false)] });
  expect(lastFormat()).toBeUndefined();
});

test.each([
  ['llama', '<|python_tag|>', '{"name": "go", "parameters": {"city": "Rome"}}'],
  ['mistral', '[TOOL_CALLS]', '[TOOL_CALLS][{"name": "go", "arguments": {"city": "Rome"}}]'],
  ['phi', 'functools[', 'functools[{"name": "go", "arguments": {"city": "Rome"}}]'],
  [
    'deepseek',
    '<｜tool▁call▁begin｜>',
    '<｜tool▁call▁begin｜>go<｜tool▁sep｜>{"city": "Rome"}<｜tool▁call▁end｜>',
  ],
  [
    'gpt-oss',
    'to=functions.',
    '<|channel|>commentary to=functions.go <|constrain|>json<|message|>{"city": "Rome"}',
  ],
] as const)(
  'calls of strict functions are held in the form %s',
  async (toolParser, begin, call) => {
    engine = new ScriptedEngine();
    server = await serve(engine, { port: 0, chatTemplate: HERMES, toolParser });
    engine.answers.push(call);
    const { json } = await chat({ tools: [go(true)] });
    expect(json.choices[0].message.tool_calls[0].function.arguments).toBe('{"city": "Rome"}');
    expect(lastFormat()).toMatchObject({ '~answer': { calls: { begin, isSingle: false } } });
  },
);

test('with a format, the model writes its text or calls a function', async () => {
  await start(HERMES);
  await chat({ tools: [go(true), go()], response_format });
  const { '~answer': answer } = lastFormat() as {
    '~answer': { calls: { forms: { schema: object }[] } };
  };
  expect(answer).toMatchObject({ format: { schema } });
  // A function that is not strict takes any object.
  expect(answer.calls.forms[0]?.schema).toMatchObject({
    anyOf: [
      { properties: { arguments: schema } },
      { properties: { arguments: { type: 'object' } } },
    ],
  });
});

test('a strict function with inexpressible raw text gets 400 with its path', async () => {
  engine = new ScriptedEngine();
  server = await serve(engine, { port: 0, chatTemplate: HERMES, toolParser: 'qwen3-coder' });
  const day = { type: 'object', properties: { day: { type: 'string', format: 'date' } } };
  const { status, json } = await chat({ tools: [go(true, day)] });
  expect([status, json.error.param]).toEqual([400, 'tools']);
  expect(json.error.message).toMatch(/#\/properties\/day\/format/);
  expect((await chat({ tools: [go(false, day)] })).status).toBe(200);
});

test('a strict function with an inexpressible schema gets 400 with its path', async () => {
  await start(HERMES);
  const odd = { type: 'object', properties: { a: { multipleOf: 0.3, type: 'number', not: {} } } };
  const { status, json } = await chat({ tools: [go(true, odd)] });
  expect(status).toBe(400);
  expect(json.error).toMatchObject({ param: 'tools', code: 'DS_ARGUMENT' });
});
