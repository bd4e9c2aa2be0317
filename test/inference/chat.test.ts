// Conversations in programs: functions of the caller, and messages as prompts.
import { initInference, nn } from '../../lib/index.js';
import { type ChatEvent, type ChatRequest, chat } from '../../lib/inference/chat.js';
import { tokenizer } from '../serve/fake-engine.js';
import { HERMES, ScriptedEngine } from '../serve/scripted-engine.js';

const { z } = require('zod') as typeof import('zod');
const THINKS = `${HERMES}{# <think></think> #}`;
const question = { role: 'user', content: 'What is 1 + 2?' };
const call = (name: string, options: object): string =>
  `<tool_call>\n${JSON.stringify({ name, arguments: options })}\n</tool_call>`;
const add = {
  name: 'add',
  description: 'Adds',
  parameters: z.object({ a: z.number(), b: z.number().default(2) }),
  run: ({ a, b }: { a: number; b: number }) => a + b,
};

async function talk(answers: readonly string[], fields: Partial<ChatRequest> = {}) {
  const engine = new ScriptedEngine();
  engine.answers.push(...answers);
  const events: ChatEvent[] = [];
  const result = await chat(engine, {
    messages: [question],
    tools: [add],
    chatTemplate: THINKS,
    onEvent: (event) => events.push(event),
    ...fields,
  });
  expect(engine.active).toBe(0);
  return { engine, events, result };
}

test('chat() runs a call, returns its result and gets an answer; a zod schema fills defaults', async () => {
  const { engine, events, result } = await talk([
    `<think>I add.</think>Let me see.${call('add', { a: 1 })}`,
    'It is 3.',
  ]);
  expect(result).toMatchObject({
    content: 'It is 3.',
    reasoning: '',
    finishReason: 'stop',
    rounds: 2,
  });
  expect(result.messages.map(({ role, content }) => [role, content])).toEqual([
    ['user', question.content],
    ['assistant', 'Let me see.'],
    ['tool', '3'],
    ['assistant', 'It is 3.'],
  ]);
  expect(engine.lastPrompt).toContain('<think>I add.</think>Let me see.<tool_call>{"name": "add"');
  expect(engine.lastPrompt).toContain('<tool_response>3</tool_response>');
  expect(events.map(({ type }) => type).filter((item, i, all) => item !== all[i - 1])).toEqual([
    'reasoning',
    'content',
    'call',
    'result',
    'content',
  ]);
  expect(result.generatedTokens).toBeGreaterThan(10);
});

test('calls of one answer run in parallel; results keep their order', async () => {
  const order: string[] = [];
  const slow = async ({ n }: { n: number }) => {
    order.push(`start ${n}`);
    await new Promise((resolve) => setTimeout(resolve, n === 1 ? 10 : 0));
    order.push(`end ${n}`);
    return { n };
  };
  const answers = [call('slow', { n: 1 }) + call('slow', { n: 2 }), 'Done.'];
  const { result } = await talk(answers, { tools: [{ name: 'slow', run: slow as never }] });
  expect(order).toEqual(['start 1', 'start 2', 'end 2', 'end 1']);
  const results = result.messages.filter(({ role }) => role === 'tool');
  expect(results.map(({ content }) => content)).toEqual(['{"n":1}', '{"n":2}']);
});

test.each([
  ['a thrown error', call('fail', {}), 'Error: no such file'],
  ['an unknown function', call('sub', {}), 'Error: there is no function "sub"'],
  ['arguments that the schema refuses', call('add', { a: 'x' }), 'Error: Invalid input'],
  [
    'arguments that are no JSON',
    '<tool_call>{"name": "add", "arguments": {"a": }}</tool_call>',
    'Error: the arguments are no JSON object: {"a": }',
  ],
])('the model reads %s', async (_, answer, expected) => {
  const fail = {
    name: 'fail',
    run: () => {
      throw new Error('no such file');
    },
  };
  const { engine, result } = await talk([answer, 'Sorry.'], { tools: [add, fail] });
  expect(result.content).toBe('Sorry.');
  expect(engine.lastPrompt).toContain(`<tool_response>${expected}`);
});

test('a model that does not stop calling ends after maxRounds', async () => {
  const answer = call('add', { a: 1, b: 1 });
  const { result } = await talk([answer, answer, answer], { maxRounds: 3 });
  expect([result.rounds, result.finishReason]).toEqual([3, 'rounds']);
});

test('an answer that was cut off runs no tools', async () => {
  const { result } = await talk([call('add', { a: 1, b: 1 })], { maxNewTokens: 20 });
  expect([result.finishReason, result.messages.at(-1)?.role]).toEqual(['length', 'assistant']);
});

test('without a limit, an answer may fill the engine', async () => {
  const { engine } = await talk(['Hello.'], { maxNewTokens: undefined });
  const { prompt, maxNewTokens } = engine.requests[0] as { prompt: number[]; maxNewTokens: number };
  expect(prompt.length + maxNewTokens).toBe(engine.maxTokens);
});

test('a signal ends the loop while a function runs', async () => {
  const controller = new AbortController();
  const run = () => controller.abort(new Error('enough'));
  const fields = { tools: [{ name: 'stop', run }], signal: controller.signal };
  await expect(talk([call('stop', {}), 'Never.'], fields)).rejects.toThrow('enough');
});

test('invalid requests are refused', async () => {
  await expect(talk([], { tools: [{ name: 'f' } as never] })).rejects.toThrow(/tools\[0\].*run/);
  await expect(talk([], { messages: [] })).rejects.toThrow(/a list of messages/);
  await expect(talk([], { maxRounds: 0 })).rejects.toThrow(/maxRounds/);
  const chatTemplate = '{{ messages[0].content }}';
  await expect(talk([], { chatTemplate })).rejects.toThrow(/does not read them/);
});

test('generate(), stream() and chat() of an engine accept messages', async () => {
  const config = {
    model_type: 'llama',
    vocab_size: 1007,
    hidden_size: 32,
    num_hidden_layers: 1,
    num_attention_heads: 2,
    intermediate_size: 64,
    max_position_embeddings: 256,
  };
  const model = nn.models.fromConfig(config);
  const engine = await initInference(model, { device: 'cpu' }, { tokenizer });
  const messages = [question];
  const prompt = tokenizer.applyChatTemplate(messages, { addGenerationPrompt: true }).ids;
  const rest = { maxNewTokens: 8, temperature: 0 };
  const [expected] = await engine.generate({ ...rest, prompt, beginsText: true });
  expect(await engine.generate({ ...rest, messages })).toEqual([
    { ...expected, cachedTokens: expect.any(Number) },
  ]);
  let text = '';
  for await (const piece of engine.stream({ ...rest, messages })) text += piece.text;
  expect(text).toBe(expected?.text);
  const { content } = await engine.chat({ ...rest, messages });
  expect(content).toBe(expected?.text);
  const byPythonName = { max_new_tokens: 8, temperature: 0, messages } as ChatRequest;
  expect((await engine.chat(byPythonName)).content).toBe(expected?.text);
  await expect(engine.generate({ ...rest })).rejects.toThrow(/prompt or messages, got neither/);
  await expect(engine.generate({ ...rest, prompt, messages })).rejects.toThrow(/got both/);
  await engine.destroy();
});
