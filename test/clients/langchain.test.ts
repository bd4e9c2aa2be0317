// LangChain.js: ChatOpenAI on chats and on responses, with tools and their results.
import { type Any, all, engine, MODEL, SUM, says, withScriptedServer } from './scripted.js';

const { ChatOpenAI } = require('@langchain/openai') as Any;
const { AIMessageChunk, HumanMessage, ToolMessage } = require('@langchain/core/messages') as Any;
const { tool } = require('@langchain/core/tools') as Any;
const { z } = require('zod') as Any;

const place = withScriptedServer();
const add = tool(async ({ a, b }: { a: number; b: number }) => `${a + b}`, {
  name: 'add',
  description: 'Adds',
  schema: z.object({ a: z.number(), b: z.number() }),
});
const question = new HumanMessage('What is 1 + 2?');

describe.each([false, true])('useResponsesApi: %s', (useResponsesApi) => {
  const model = (fields: object = {}) =>
    new ChatOpenAI({
      model: MODEL,
      apiKey: 'key',
      maxRetries: 0,
      useResponsesApi,
      configuration: { baseURL: place.url },
      ...fields,
    });

  test('a complete and a streamed answer', async () => {
    says('It is 3.', 'It is 3.');
    const whole = await model().invoke([question]);
    expect(whole.text).toBe('It is 3.');
    expect(whole.usage_metadata.output_tokens).toBe(7);
    const chunks = await all<Any>(await model().stream([question]));
    expect(chunks.map(({ text }) => text).join('')).toBe('It is 3.');
  });

  test('a loop of tools, whole', async () => {
    says(`Let me see.${SUM}`, 'It is 3.');
    const bound = model().bindTools([add]);
    const asked = await bound.invoke([question]);
    expect(asked.tool_calls).toMatchObject([{ name: 'add', args: { a: 1, b: 2 } }]);
    const results = await Promise.all(asked.tool_calls.map((item: Any) => add.invoke(item)));
    expect(results[0]).toBeInstanceOf(ToolMessage);
    expect((await bound.invoke([question, asked, ...results])).text).toBe('It is 3.');
    expect(engine.lastPrompt).toContain('<tool_response>3</tool_response>');
  });

  test('a loop of tools, streamed', async () => {
    says(`${SUM}${SUM}`, 'It is 3.');
    const bound = model().bindTools([add]);
    const chunks = await all<Any>(await bound.stream([question]));
    const asked = chunks.reduce((sum, item) => sum.concat(item));
    expect(asked).toBeInstanceOf(AIMessageChunk);
    expect(asked.tool_calls.map(({ args }: Any) => args)).toEqual([
      { a: 1, b: 2 },
      { a: 1, b: 2 },
    ]);
    const results = await Promise.all(asked.tool_calls.map((item: Any) => add.invoke(item)));
    expect((await bound.invoke([question, asked, ...results])).text).toBe('It is 3.');
  });

  test('a cut answer, and an error of the server', async () => {
    says('A long answer.');
    const cut = await model({ maxTokens: 3 }).invoke([question]);
    expect(JSON.stringify(cut.response_metadata)).toMatch(/length|max_output_tokens/);
    await expect(model({ temperature: 9 }).invoke([question])).rejects.toThrow(
      /temperature: expected a finite number/,
    );
  });
});
