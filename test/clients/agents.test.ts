// The OpenAI Agents SDK: loops of tools and handoffs on responses and on chats.
import { type Any, all, call, engine, MODEL, SUM, says, withScriptedServer } from './scripted.js';

const agents = require('@openai/agents') as Any;
const { OpenAI } = require('openai') as Any;
const { z } = require('zod') as Any;
const { Agent, OpenAIProvider, Runner, tool } = agents;

const place = withScriptedServer();
const add = tool({
  name: 'add',
  description: 'Adds',
  parameters: z.object({ a: z.number(), b: z.number() }),
  execute: async ({ a, b }: { a: number; b: number }) => String(a + b),
});
const agent = () =>
  new Agent({ name: 'Adder', instructions: 'Add numbers.', model: MODEL, tools: [add] });

describe.each([true, false])('useResponses: %s', (useResponses) => {
  const runner = () => {
    const openAIClient = new OpenAI({ baseURL: place.url, apiKey: 'key', maxRetries: 0 });
    const modelProvider = new OpenAIProvider({ openAIClient, useResponses });
    return new Runner({ modelProvider, tracingDisabled: true });
  };

  test('a loop of tools, whole', async () => {
    says(`<think>Hm.</think>${SUM}`, 'It is 3.');
    const { finalOutput, rawResponses } = await runner().run(agent(), 'What is 1 + 2?');
    expect([finalOutput, rawResponses.length]).toEqual(['It is 3.', 2]);
    expect(rawResponses[0].usage.outputTokens).toBeGreaterThan(5);
    expect(engine.lastPrompt).toContain('<tool_response>3</tool_response>');
    expect(engine.lastPrompt).toContain('Add numbers.');
  });

  test('a loop of tools, streamed', async () => {
    says(`Let me see.${SUM}${SUM}`, 'It is 3.');
    const stream = await runner().run(agent(), 'What is 1 + 2?', { stream: true });
    const types = (await all<Any>(stream)).map(({ type }) => type);
    await stream.completed;
    expect(stream.finalOutput).toBe('It is 3.');
    expect(types).toContain('raw_model_stream_event');
    expect(engine.lastPrompt.match(/<tool_response>3<\/tool_response>/g)).toHaveLength(2);
  });

  test('a handoff to another agent', async () => {
    says(call('transfer_to_Adder', {}), 'It is 3.');
    const first = new Agent({ name: 'First', model: MODEL, handoffs: [agent()] });
    const { finalOutput, lastAgent } = await runner().run(first, 'What is 1 + 2?');
    expect([finalOutput, lastAgent.name]).toEqual(['It is 3.', 'Adder']);
  });

  test('a second turn with the history of the first', async () => {
    says(SUM, 'It is 3.', 'Bye.');
    const first = await runner().run(agent(), 'What is 1 + 2?');
    const input = [...first.history, { role: 'user', content: 'Thanks.' }];
    const second = await runner().run(agent(), input);
    expect(second.finalOutput).toBe('Bye.');
    expect(engine.lastPrompt).toMatch(/It is 3\..*user\nThanks\./s);
  });

  test('an error of the server', async () => {
    const odd = new Agent({ name: 'Odd', model: 'other' });
    await expect(runner().run(odd, 'x')).rejects.toMatchObject({ status: 404 });
  });
});
