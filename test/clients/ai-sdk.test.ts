// The AI SDK: its providers of responses, chats and compatible servers.
import {
  type Any,
  all,
  engine,
  MODEL,
  SUM,
  says,
  THOUGHT,
  withScriptedServer,
} from './scripted.js';

const { generateText, streamText, stepCountIs, tool } = require('ai') as Any;
const { createOpenAI } = require('@ai-sdk/openai') as Any;
const { createOpenAICompatible } = require('@ai-sdk/openai-compatible') as Any;
const { z } = require('zod') as Any;

const place = withScriptedServer();
const models: Record<string, () => Any> = {
  responses: () => createOpenAI({ baseURL: place.url, apiKey: 'key' })(MODEL),
  chat: () => createOpenAI({ baseURL: place.url, apiKey: 'key' }).chat(MODEL),
  compatible: () => {
    const settings = { name: 'ds', baseURL: place.url, apiKey: 'key', includeUsage: true };
    return createOpenAICompatible(settings)(MODEL);
  },
};
const add = tool({
  description: 'Adds',
  inputSchema: z.object({ a: z.number(), b: z.number() }),
  execute: async ({ a, b }: { a: number; b: number }) => a + b,
});
const common = { prompt: 'What is 1 + 2?', maxRetries: 0 };

describe.each(Object.keys(models))('%s', (name) => {
  const model = () => models[name]?.();

  test('a complete answer with its usage', async () => {
    says('It is 3.');
    const { text, usage, finishReason } = await generateText({ ...common, model: model() });
    expect([text, finishReason]).toEqual(['It is 3.', 'stop']);
    expect(usage.inputTokens).toBeGreaterThan(0);
    expect(usage.outputTokens).toBe(7);
  });

  test('a streamed answer', async () => {
    says('It is 3.');
    const { textStream, usage } = streamText({ ...common, model: model() });
    expect((await all<string>(textStream)).join('')).toBe('It is 3.');
    expect((await usage).outputTokens).toBe(7);
  });

  test('a loop of tools, whole', async () => {
    says(`${THOUGHT}Let me see.${SUM}`, 'It is 3.');
    const { text, steps, reasoning } = await generateText({
      ...common,
      model: model(),
      tools: { add },
      stopWhen: stepCountIs(3),
    });
    expect([text, steps.length, reasoning.length]).toEqual(['It is 3.', 2, 0]);
    expect(steps[0].toolResults[0].output).toBe(3);
    // The provider of chats reads no reasoning.
    if (name !== 'chat') expect(steps[0].reasoningText).toBe('I add.');
    expect(engine.lastPrompt).toContain('<tool_response>3</tool_response>');
    expect(engine.lastPrompt).toContain('Let me see.<tool_call>{"name": "add"');
  });

  test('a loop of tools, streamed, with two calls in one answer', async () => {
    says(`${THOUGHT}${SUM}\n${SUM}`, 'It is 3.');
    const { fullStream, steps } = streamText({
      ...common,
      model: model(),
      tools: { add },
      stopWhen: stepCountIs(3),
    });
    const types = (await all<Any>(fullStream)).map(({ type }) => type);
    expect(types.filter((type) => type === 'tool-call')).toHaveLength(2);
    expect(types).not.toContain('error');
    expect((await steps).map((item: Any) => item.finishReason)).toEqual(['tool-calls', 'stop']);
    expect(engine.lastPrompt.match(/<tool_response>3<\/tool_response>/g)).toHaveLength(2);
  });

  test('arguments that violate the schema are reported as an error of the tool', async () => {
    says('<tool_call>{"name": "add", "arguments": {"a": "one"}}</tool_call>', 'Sorry.');
    const { text } = await generateText({
      ...common,
      model: model(),
      tools: { add },
      stopWhen: stepCountIs(3),
    });
    expect(text).toBe('Sorry.');
    expect(engine.lastPrompt).toContain('<tool_response>');
  });

  test('a cut answer, and an error of the server', async () => {
    says('A long answer.');
    const cut = await generateText({ ...common, model: model(), maxOutputTokens: 3 });
    expect(cut.finishReason).toBe('length');
    await expect(generateText({ ...common, model: model(), temperature: 9 })).rejects.toThrow(
      /temperature: expected a finite number from 0 to 2, got 9/,
    );
  });

  test('an error in a stream', async () => {
    says('A long answer.');
    engine.failAt = { place: 3, error: new Error('broken') };
    const report = jest.spyOn(console, 'error').mockImplementation();
    const { fullStream } = streamText({ ...common, model: model() });
    const types = (await all<Any>(fullStream)).map(({ type }) => type);
    expect(types).toContain('error');
    report.mockRestore();
  });
});
