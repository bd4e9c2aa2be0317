// The package of OpenAI: chats with tools, and responses.
import {
  type Any,
  all,
  call,
  engine,
  MODEL,
  SUM,
  says,
  THOUGHT,
  withScriptedServer,
} from './scripted.js';

const { OpenAI } = require('openai') as Any;
const place = withScriptedServer();
let client: Any;
beforeAll(() => {
  client = new OpenAI({ baseURL: place.url, apiKey: 'key', maxRetries: 0 });
});

const model = MODEL;
const messages = [{ role: 'user', content: 'What is 1 + 2?' }];
const parameters = {
  type: 'object',
  properties: { a: { type: 'number' }, b: { type: 'number' } },
  required: ['a', 'b'],
  additionalProperties: false,
};
const tools = [{ type: 'function', function: { name: 'add', parameters } }];
const flat = [{ type: 'function', name: 'add', parameters, strict: false }];

describe('chats', () => {
  test('a call, whole', async () => {
    says(SUM);
    const { choices } = await client.chat.completions.create({ model, messages, tools });
    expect(choices[0].message.tool_calls[0].function).toEqual({
      name: 'add',
      arguments: '{"a":1,"b":2}',
    });
  });

  test('calls by the stream helper, with a strict tool', async () => {
    says(`${THOUGHT}Text.${SUM}${SUM}`);
    const strict = [{ type: 'function', function: { ...tools[0]?.function, strict: true } }];
    const stream = client.chat.completions.stream({ model, messages, tools: strict });
    const { choices } = await stream.finalChatCompletion();
    expect(choices[0]).toMatchObject({
      finish_reason: 'tool_calls',
      message: { content: 'Text.' },
    });
    const parsed = choices[0].message.tool_calls.map((item: Any) => item.function.parsed_arguments);
    expect(parsed).toEqual([
      { a: 1, b: 2 },
      { a: 1, b: 2 },
    ]);
  });

  test.each([false, true])('runTools closes the loop (stream: %s)', async (stream) => {
    says(SUM, 'It is 3.');
    const add = ({ a, b }: { a: number; b: number }) => String(a + b);
    const runnable = { name: 'add', description: 'Adds', parameters, function: add };
    const settings = { ...runnable, parse: JSON.parse };
    const runner = client.chat.completions.runTools({
      model,
      messages,
      stream,
      tools: [{ type: 'function', function: settings }],
    });
    expect(await runner.finalContent()).toBe('It is 3.');
    expect(engine.lastPrompt).toContain('<tool_response>3</tool_response>');
  });

  test('a name that the request does not have, and damaged arguments', async () => {
    says(call('subtract', {}), '<tool_call>{"name": "add", "arguments": {"a": }}</tool_call>');
    const other = await client.chat.completions.create({ model, messages, tools });
    expect(other.choices[0].message.tool_calls[0].function.name).toBe('subtract');
    const damaged = await client.chat.completions.create({ model, messages, tools });
    expect(damaged.choices[0].message.tool_calls[0].function.arguments).toBe('{"a": }');
  });

  test('bad arguments in a history are 400', async () => {
    const odd = { type: 'function', id: 'a', function: { name: 'add', arguments: '{' } };
    const history = [...messages, { role: 'assistant', content: null, tool_calls: [odd] }];
    await expect(
      client.chat.completions.create({ model, messages: history }),
    ).rejects.toMatchObject({
      status: 400,
      param: 'messages[1].tool_calls[0].function.arguments',
    });
  });
});

describe('responses', () => {
  test('a complete answer, and its stored response', async () => {
    says('It is 3.');
    const result = await client.responses.create({ model, input: 'What?', instructions: 'Short.' });
    expect(result.output_text).toBe('It is 3.');
    expect(result).toMatchObject({ object: 'response', status: 'completed', error: null });
    expect(result.usage).toMatchObject({ input_tokens: expect.any(Number), output_tokens: 7 });
    expect(engine.lastPrompt).toContain('system\nShort.');
    expect((await client.responses.retrieve(result.id)).output_text).toBe('It is 3.');
    await client.responses.delete(result.id);
    await expect(client.responses.retrieve(result.id)).rejects.toMatchObject({ status: 404 });
  });

  test('the events of reasoning, text and calls, in order', async () => {
    says(`${THOUGHT}Text.${SUM}`);
    const stream = await client.responses.create({ model, input: 'x', tools: flat, stream: true });
    const events: Any[] = await all(stream);
    expect(events.map(({ sequence_number }) => sequence_number)).toEqual(events.map((_, i) => i));
    const types = events.map(({ type }) => type.replace('response.', ''));
    const once = types.filter((type, i) => type !== types[i - 1]);
    expect(once).toEqual([
      ...['created', 'in_progress', 'output_item.added', 'reasoning_summary_part.added'],
      ...['reasoning_summary_text.delta', 'reasoning_summary_text.done'],
      ...['reasoning_summary_part.done', 'output_item.done', 'output_item.added'],
      ...['content_part.added', 'output_text.delta', 'output_text.done', 'content_part.done'],
      ...['output_item.done', 'output_item.added', 'function_call_arguments.delta'],
      ...['function_call_arguments.done', 'output_item.done', 'completed'],
    ]);
    const items = events.filter(({ type }) => type === 'response.output_item.done');
    expect(items.map(({ output_index: index, item }) => [index, item.type])).toEqual([
      [0, 'reasoning'],
      [1, 'message'],
      [2, 'function_call'],
    ]);
    const { output } = events.at(-1).response;
    expect(output).toEqual(items.map(({ item }) => item));
  });

  test('the stream helper gathers the same response', async () => {
    says(`Text.${SUM}`);
    const stream = client.responses.stream({ model, input: 'x', tools: flat });
    const { output, output_parsed } = await stream.finalResponse();
    expect(output.map(({ type }: Any) => type)).toEqual(['message', 'function_call']);
    expect([output[1].arguments, output_parsed]).toEqual(['{"a":1,"b":2}', null]);
  });

  test('a conversation by previous_response_id', async () => {
    says(`${THOUGHT}${SUM}`, 'It is 3.', 'Bye.');
    const first = await client.responses.create({ model, input: 'What?', tools: flat });
    const asked = first.output.find(({ type }: Any) => type === 'function_call');
    const result = { type: 'function_call_output', call_id: asked.call_id, output: '3' };
    const second = await client.responses.create({
      model,
      previous_response_id: first.id,
      input: [result],
      tools: flat,
    });
    expect(second.output_text).toBe('It is 3.');
    expect(engine.lastPrompt).toContain('<think>I add.</think><tool_call>{"name": "add"');
    expect(engine.lastPrompt).toContain('<tool_response>3</tool_response>');
    await client.responses.create({ model, previous_response_id: second.id, input: 'Thanks.' });
    expect(engine.lastPrompt).toMatch(/It is 3\..*user\nThanks\./s);
  });

  test('a history of items, with references', async () => {
    says('One.', 'Two.');
    const { output } = await client.responses.create({ model, input: 'x' });
    const reference = { type: 'item_reference', id: output[0].id };
    const question = { role: 'user', content: [{ type: 'input_text', text: 'Next' }] };
    await client.responses.create({ model, input: [reference, question] });
    expect(engine.lastPrompt).toMatch(/assistant\nOne\..*user\nNext/s);
  });

  test('max_output_tokens makes it incomplete', async () => {
    says('A long answer.', 'A long answer.');
    const body = { model, input: 'x', max_output_tokens: 3 };
    const whole = await client.responses.create(body);
    expect(whole).toMatchObject({
      status: 'incomplete',
      incomplete_details: { reason: 'max_output_tokens' },
    });
    const events: Any[] = await all(await client.responses.create({ ...body, stream: true }));
    expect(events.at(-1).type).toBe('response.incomplete');
  });

  test.each([
    [{ input: [] }, 400, 'input'],
    [{ input: 'x', conversation: 'c' }, 400, 'conversation'],
    [{ input: 'x', background: true }, 400, 'background'],
    [{ input: 'x', tools: [{ type: 'web_search' }] }, 400, 'tools[0].type'],
    [{ input: 'x', temperature: 5 }, 400, 'temperature'],
    [{ input: 'x', max_output_tokens: 0 }, 400, 'max_output_tokens'],
    [{ input: 'x', reasoning: { effort: 'odd' } }, 400, 'reasoning.effort'],
    [{ input: [{ type: 'item_reference', id: 'msg_x' }] }, 404, 'input[0].id'],
    [{ input: [{ type: 'computer_call' }] }, 400, 'input[0].type'],
    [{ input: [{ role: 'user', content: [{ type: 'input_image' }] }] }, 400, null],
    [{ input: 'x', previous_response_id: 'resp_x' }, 404, null],
    [{ input: 'x', odd: 1 }, 400, 'odd'],
  ])('%j is refused', async (fields, status, param) => {
    await expect(client.responses.create({ model, ...fields })).rejects.toMatchObject({
      status,
      ...(param && { param }),
    });
  });

  test('an error in a stream is response.failed', async () => {
    says('A long answer.');
    engine.failAt = { place: 3, error: new Error('broken') };
    const report = jest.spyOn(console, 'error').mockImplementation();
    const events: Any[] = await all(
      await client.responses.create({ model, input: 'x', stream: true }),
    );
    expect(events.at(-1)).toMatchObject({
      type: 'response.failed',
      response: { status: 'failed' },
    });
    report.mockRestore();
  });

  test('store false keeps nothing', async () => {
    says('x');
    const { id } = await client.responses.create({ model, input: 'x', store: false });
    await expect(client.responses.retrieve(id)).rejects.toMatchObject({ status: 404 });
  });
});
