// Calls and reasoning in chats: whole and streamed, and histories that go back to the template.
import { type InferenceServer, serve } from '../../lib/serve/index.js';
import { ask, eventsOf } from './client.js';
import { tokenizer } from './fake-engine.js';
import { HERMES, ScriptedEngine } from './scripted-engine.js';

const engine = new ScriptedEngine();
let server: InferenceServer;
let url: string;

beforeAll(async () => {
  server = await serve(engine, { port: 0, chatTemplate: `${HERMES}{# <think></think> #}` });
  url = `${server.url}/v1/chat/completions`;
});
afterAll(() => server.kill());

const messages = [{ role: 'user', content: 'What is 1 + 2?' }];
const tools = [
  {
    type: 'function',
    function: {
      name: 'add',
      parameters: { type: 'object', properties: { a: { type: 'number' } } },
    },
  },
];
const CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>';

async function chat(answer: string, fields: object = {}) {
  engine.answers.push(answer);
  const { status, json } = await ask(url, { body: { messages, tools, ...fields } });
  return { status, ...json };
}

async function streamAnswer(answer: string, fields: object = {}) {
  engine.answers.push(answer);
  const body = { messages, tools, stream: true, ...fields };
  const { text } = await ask(url, { body });
  const { events, isDone } = eventsOf(text);
  expect(isDone).toBe(true);
  return events;
}

test('calls, content and reasoning of a whole answer', async () => {
  const answer = `<think>\nI add.\n</think>\n\nLet me see.\n${CALL}\n${CALL}`;
  const { choices, usage } = await chat(answer);
  const call = {
    id: expect.stringMatching(/^call_[0-9a-f]{32}$/),
    type: 'function',
    function: { name: 'add', arguments: '{"a": 1, "b": 2}' },
  };
  expect(choices).toEqual([
    {
      index: 0,
      logprobs: null,
      finish_reason: 'tool_calls',
      message: {
        role: 'assistant',
        content: 'Let me see.',
        refusal: null,
        reasoning_content: 'I add.',
        reasoning: 'I add.',
        tool_calls: [call, call],
      },
    },
  ]);
  const { reasoning_tokens: thought } = usage.completion_tokens_details;
  expect(thought).toBeGreaterThan(2);
  const rest = [...tokenizer.encode(`Let me see.\n${CALL}\n${CALL}`)].length;
  expect(thought).toBeLessThan(usage.completion_tokens - rest + 4);
});

test('content is null in an answer of calls only', async () => {
  const { choices } = await chat(CALL);
  expect(choices[0].message.content).toBeNull();
});

test('in a stream, the id and name of a call are sent once, in their own delta', async () => {
  const events = await streamAnswer(`<think>Hm.</think>Text.${CALL}${CALL}`);
  const deltas = events.map(({ choices }) => choices[0].delta);
  expect(deltas[0]).toEqual({ role: 'assistant', content: '' });
  const calls = deltas.flatMap((delta) => delta.tool_calls ?? []);
  expect(calls.every(({ index }: { index: number }) => index === 0 || index === 1)).toBe(true);
  for (const index of [0, 1]) {
    const [first, ...rest] = calls.filter((call) => call.index === index);
    expect(first).toEqual({
      index,
      id: expect.any(String),
      type: 'function',
      function: { name: 'add', arguments: '' },
    });
    for (const one of rest) {
      expect(Object.keys(one)).toEqual(['index', 'function']);
      expect(Object.keys(one.function)).toEqual(['arguments']);
    }
    expect(rest.map((item) => item.function.arguments).join('')).toBe('{"a": 1, "b": 2}');
    expect(rest.length).toBeGreaterThan(1);
  }
  const joinDeltas = (key: string): string => deltas.map((delta) => delta[key] ?? '').join('');
  expect([joinDeltas('content'), joinDeltas('reasoning_content'), joinDeltas('reasoning')]).toEqual(
    ['Text.', 'Hm.', 'Hm.'],
  );
  const reasons = events.map(({ choices }) => choices[0].finish_reason);
  expect(reasons.filter((reason) => reason !== null)).toEqual(['tool_calls']);
  expect(reasons.at(-1)).toBe('tool_calls');
});

test('parallel_tool_calls false ends the answer with its first call', async () => {
  const fields = { parallel_tool_calls: false };
  const { choices, usage } = await chat(CALL + CALL, fields);
  expect(choices[0].message.tool_calls).toHaveLength(1);
  expect(choices[0].finish_reason).toBe('tool_calls');
  const { usage: all } = await chat(CALL + CALL);
  expect(usage.completion_tokens).toBeLessThan(all.completion_tokens);
  expect(engine.active).toBe(0);
});

test('a truncated call: the reason is length, and its arguments are as they came', async () => {
  const { choices } = await chat(CALL, { max_tokens: 12 });
  expect(choices[0].finish_reason).toBe('length');
});

test('text that is no call is content, and so are calls without tools', async () => {
  const damaged = '<tool_call>\n{"name": \n</tool_call>';
  const { choices } = await chat(damaged);
  expect(choices[0]).toMatchObject({ message: { content: damaged }, finish_reason: 'stop' });
  const without = await chat(CALL, { tool_choice: 'none' });
  expect(without.choices[0].message).toMatchObject({ content: CALL });
  expect(without.choices[0].message.tool_calls).toBeUndefined();
});

test('a history with calls, results and reasoning reaches the template', async () => {
  const history = [
    ...messages,
    {
      role: 'assistant',
      content: null,
      reasoning_content: 'I add.',
      refusal: null,
      tool_calls: [
        { id: 'call_1', type: 'function', function: { name: 'add', arguments: '{"a":1,"b":2}' } },
      ],
    },
    { role: 'tool', tool_call_id: 'call_1', content: [{ type: 'text', text: '3' }] },
    { role: 'assistant', content: 'It is 3.', reasoning: 'Easy.' },
    { role: 'user', content: 'Thanks.' },
  ];
  const { status } = await chat('Bye', { messages: history });
  expect(status).toBe(200);
  const expected = [
    '<think>I add.</think><tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>',
    '<tool_response>3</tool_response>',
    '<think>Easy.</think>It is 3.',
  ];
  for (const text of expected) expect(engine.lastPrompt).toContain(text);
});

test('reasoning_effort "none" closes reasoning in the prompt', async () => {
  const { choices } = await chat('Just text.', { reasoning_effort: 'none' });
  expect(engine.lastPrompt).toMatch(/<think>\n\n<\/think>\n\n$/);
  expect(choices[0].message.content).toBe('Just text.');
});

test('--tool-parser none leaves calls in the text; a name selects the format', async () => {
  const chatTemplate = HERMES;
  for (const toolParser of ['none', 'glm'] as const) {
    const other = await serve(engine, { port: 0, chatTemplate, toolParser });
    engine.answers.push(
      '<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1</arg_value></tool_call>',
    );
    const body = { messages, tools };
    const { json } = await ask(`${other.url}/v1/chat/completions`, { body });
    await other.kill();
    const { tool_calls: calls } = json.choices[0].message;
    expect(calls?.[0].function.arguments).toBe(toolParser === 'glm' ? '{"a": 1}' : undefined);
  }
});

test('logprobs and token ids are of all tokens, calls included', async () => {
  const fields = { logprobs: true, return_token_ids: true };
  const { choices, usage } = await chat(`Text.${CALL}`, fields);
  expect(choices[0].logprobs.content).toHaveLength(usage.completion_tokens);
  expect(choices[0].token_ids).toHaveLength(usage.completion_tokens);
});
