// Tests the parts of a request without a server: messages, tools, options and formats.

import { ApiError } from '../../lib/serve/api-error.js';
import { parseMessages } from '../../lib/serve/chat-messages.js';
import { readFormatField, requireCompiled } from '../../lib/serve/format-fields.js';
import { limitToContext, readDelivery, readOptions } from '../../lib/serve/parsed-request.js';
import { isWithin, RequestFields } from '../../lib/serve/request-fields.js';
import { callPlan, readTools } from '../../lib/serve/tools.js';
import type { JsonObject } from '../../types/json.js';

/** The refusal of `body`: its field, and its message. */
function refusalOf(body: () => unknown): {
  param: string | null;
  message: string;
  code: string | null;
} {
  try {
    body();
  } catch (error) {
    if (error instanceof ApiError && error.status === 400) return error;
    throw error;
  }
  throw new Error('nothing was refused');
}

const fieldsOf = (values: object) => new RequestFields(values as JsonObject);

describe('messages', () => {
  const one = (message: unknown) => parseMessages([message as never])[0];
  const call = { id: 'a', type: 'function', function: { name: 'f', arguments: '{"x":1}' } };

  test.each<[message: object, read: object]>([
    [
      { role: 'user', content: 'a' },
      { role: 'user', content: 'a' },
    ],
    [
      {
        role: 'user',
        content: [
          { type: 'text', text: 'a' },
          { type: 'text', text: 'b' },
        ],
      },
      { role: 'user', content: 'a\nb' },
    ],
    [
      {
        role: 'user',
        content: 'a',
        name: 'n',
        refusal: 'x',
        audio: null,
        parsed: 3,
        tool_calls: [],
      },
      { role: 'user', content: 'a', name: 'n' },
    ],
    [
      { role: 'tool', content: 'r', tool_call_id: 'a' },
      { role: 'tool', content: 'r', tool_call_id: 'a' },
    ],
    [
      { role: 'assistant', content: null, tool_calls: [call] },
      {
        role: 'assistant',
        content: '',
        tool_calls: [{ id: 'a', type: 'function', function: { name: 'f', arguments: { x: 1 } } }],
      },
    ],
    [
      { role: 'assistant', tool_calls: [{ function: { name: 'f' } }] },
      {
        role: 'assistant',
        content: '',
        tool_calls: [{ type: 'function', function: { name: 'f', arguments: {} } }],
      },
    ],
    [
      { role: 'assistant', reasoning_content: 't' },
      { role: 'assistant', content: '', reasoning_content: 't' },
    ],
    [
      { role: 'assistant', content: 'a', reasoning: 't' },
      { role: 'assistant', content: 'a', reasoning_content: 't' },
    ],
  ])('%j is read', (message, read) => expect(one(message)).toEqual(read));

  const withCall = (options: unknown) => ({
    role: 'assistant',
    content: '',
    tool_calls: [options],
  });
  const deep = (levels: number): object => (levels === 0 ? {} : { a: deep(levels - 1) });

  test.each<[message: unknown, param: string]>([
    ['x', 'messages[0]'],
    [{ content: 'a' }, 'messages[0].role'],
    [{ role: 'robot', content: 'a' }, 'messages[0].role'],
    [{ role: 'user' }, 'messages[0].content'],
    [{ role: 'user', content: 3 }, 'messages[0].content'],
    [{ role: 'user', reasoning: 't' }, 'messages[0].content'],
    [{ role: 'user', content: ['a'] }, 'messages[0].content[0]'],
    [{ role: 'user', content: [{ type: 'text', text: 3 }] }, 'messages[0].content[0]'],
    [{ role: 'user', content: [{ type: 'image' }] }, 'messages[0].content[0].type'],
    [{ role: 'user', content: 'a', name: 3 }, 'messages[0].name'],
    [{ role: 'user', content: 'a', audio: { id: 1 } }, 'messages[0].audio'],
    [{ role: 'user', content: 'a', tool_calls: [call] }, 'messages[0].tool_calls'],
    [{ role: 'assistant', content: 'a', tool_calls: 'x' }, 'messages[0].tool_calls'],
    [
      { role: 'assistant', tool_calls: Array.from({ length: 129 }, () => call) },
      'messages[0].tool_calls',
    ],
    [withCall({ type: 'custom', function: {} }), 'messages[0].tool_calls[0]'],
    [withCall({ function: 3 }), 'messages[0].tool_calls[0]'],
    [withCall({ function: { name: '' } }), 'messages[0].tool_calls[0].function.name'],
    [withCall({ id: 3, function: { name: 'f' } }), 'messages[0].tool_calls[0].id'],
    [
      withCall({ function: { name: 'f', arguments: '[1]' } }),
      'messages[0].tool_calls[0].function.arguments',
    ],
    [
      withCall({ function: { name: 'f', arguments: '{' } }),
      'messages[0].tool_calls[0].function.arguments',
    ],
    [
      withCall({ function: { name: 'f', arguments: deep(65) } }),
      'messages[0].tool_calls[0].function.arguments',
    ],
  ])('%j is refused', (message, param) => expect(refusalOf(() => one(message)).param).toBe(param));

  test('are 1 to 4,096', () => {
    const message = { role: 'user', content: 'a' };
    expect(parseMessages(Array(4096).fill(message) as never)).toHaveLength(4096);
    for (const bad of [undefined, [], 'x', Array(4097).fill(message)]) {
      expect(refusalOf(() => parseMessages(bad as never)).param).toBe('messages');
    }
  });

  test('arguments may have 64 levels', () => {
    expect(one(withCall({ function: { name: 'f', arguments: deep(63) } }))).toBeDefined();
    expect([isWithin([[1]], 2), isWithin([[1]], 1), isWithin(1, 0), isWithin([], 0)]).toEqual([
      true,
      false,
      true,
      false,
    ]);
  });
});

describe('functions', () => {
  const tool = (name: string, more: object = {}) => ({
    type: 'function',
    function: { name, ...more },
  });
  const read = (values: object, knows = true) => readTools(fieldsOf(values), knows);
  const tools = [tool('f'), tool('g')];

  test('are those of the request, all, some, or none', () => {
    const common = { isSingle: false, forced: null, isNamed: false };
    expect(read({})).toEqual({ tools: [], ...common });
    expect(read({ tools })).toEqual({ tools, ...common });
    expect(read({ tools, tool_choice: 'none' })).toEqual({ tools: [], ...common });
    expect(read({ tools, tool_choice: 'none' }, false)).toEqual({ tools: [], ...common });
    expect(read({ tools, parallel_tool_calls: false }).isSingle).toBe(true);
    expect(read({ tools, parallel_tool_calls: true }).isSingle).toBe(false);
    expect(read({ tools, tool_choice: 'required' })).toMatchObject({
      forced: tools,
      isNamed: false,
    });
    const named = { type: 'function', function: { name: 'g' } };
    expect(read({ tools: [...tools, tool('g')], tool_choice: named })).toMatchObject({
      forced: [tools[1]],
      isNamed: true,
    });
  });

  test.each<[values: object, param: string]>([
    [{ tools: 'x' }, 'tools'],
    [{ tools: Array.from({ length: 129 }, () => tool('f')) }, 'tools'],
    [{ tools: ['x'] }, 'tools[0]'],
    [{ tools: [{ type: 'other', function: {} }] }, 'tools[0]'],
    [{ tools: [tool('f'), { type: 'function' }] }, 'tools[1]'],
    [{ tools: [tool('')] }, 'tools[0].function.name'],
    [{ tools: [tool('f', { parameters: 'x' })] }, 'tools[0].function.parameters'],
    [{ tool_choice: 'required' }, 'tool_choice'],
    [{ tools, tool_choice: 'any' }, 'tool_choice'],
    [{ tools, tool_choice: { type: 'function' } }, 'tool_choice'],
    [{ tools, tool_choice: { type: 'tool', function: { name: 'f' } } }, 'tool_choice'],
    [
      { tools, tool_choice: { type: 'function', function: { name: 'h' } } },
      'tool_choice.function.name',
    ],
  ])('%j are refused', (values, param) => expect(refusalOf(() => read(values)).param).toBe(param));

  test('need a template that reads them', () => {
    expect(refusalOf(() => read({ tools }, false))).toMatchObject({
      param: 'tools',
      code: 'unsupported_parameter',
    });
    expect(read({ tools: [tool('f', { parameters: null })] }).tools).toHaveLength(1);
  });

  test('decide how an answer is read', () => {
    const family = { isWhole: false, idLength: 9, argumentsKey: 'arguments' };
    const forms = (more: object = {}) =>
      ({ family, reasoning: null, visibleTokens: () => [5], ...more }) as never;
    const plan = (options: object, values: object) => callPlan(forms(options), read(values));
    expect(plan({}, {})).toBeNull();
    expect(plan({ family: null }, { tools })).toBeNull();
    expect(plan({ family: { ...family, isWhole: true } }, {})?.form.family?.isWhole).toBe(true);
    expect(plan({ reasoning: 'r' }, {})).toMatchObject({ form: { family: null, reasoning: 'r' } });
    const fullCallPlan = plan({}, { tools });
    expect(fullCallPlan).toMatchObject({
      visibleTokens: [5],
      callReason: 'tool_calls',
      format: null,
    });
    expect(fullCallPlan?.form).not.toHaveProperty('maxCalls');
    expect(fullCallPlan?.nextId()).toMatch(/^[A-Za-z0-9]{9}$/);
    expect(plan({}, { tools, parallel_tool_calls: false })?.form.maxCalls).toBe(1);
    const forced = plan({ family: null }, { tools, tool_choice: 'required' });
    expect(forced?.nextId()).toMatch(/^call_[0-9a-f]{32}$/);
    expect(forced).toMatchObject({ callReason: 'tool_calls', form: { maxCalls: 1 } });
    expect(forced?.format).not.toBeNull();
    const named = { tools, tool_choice: { type: 'function', function: { name: 'f' } } };
    expect(plan({}, named)?.callReason).toBe('stop');
  });
});

describe('options', () => {
  const engineWith = (more: object = {}) =>
    ({
      vocabSize: 10,
      maxTokens: 20,
      maxPromptTokens: 19,
      tokenizer: {},
      defaults: { topK: 7 },
      limits: { answers: 4 },
      ...more,
    }) as never;
  const read = (values: object, min?: number) => readOptions(fieldsOf(values), engineWith(), min);

  test('of a request are over the defaults', () => {
    // Absent options have no keys, which would hide defaults of the engine.
    expect(read({})).toStrictEqual({
      options: { topK: 7, n: 1 },
      requestedTokens: undefined,
      requestedField: 'max_tokens',
    });
    expect(read({ top_k: 3, n: 4, max_tokens: 5 })).toEqual({
      options: { topK: 3, n: 4 },
      requestedTokens: 5,
      requestedField: 'max_tokens',
    });
    expect(read({ top_k: -1 }).options.topK).toBe(0);
    expect(read({ max_completion_tokens: 6 })).toMatchObject({
      requestedTokens: 6,
      requestedField: 'max_completion_tokens',
    });
    expect(read({ max_completion_tokens: 6, max_tokens: 6 }).requestedTokens).toBe(6);
    expect(read({ max_tokens: 0 }, 0).requestedTokens).toBe(0);
    expect(read({ seed: -1 }).options.seed).toBe(2 ** 53 - 1);
    expect(read({ seed: 5, stop: 'a', stop_token_ids: [9] }).options).toMatchObject({
      seed: 5,
      stop: ['a'],
      stopTokens: [9],
    });
    expect(read({ logit_bias: { 9: -100, 0: 100 } }).options.logitBias).toEqual({
      9: -100,
      0: 100,
    });
  });

  test.each<[values: object, param: string]>([
    [{ max_tokens: 0 }, 'max_tokens'],
    [{ max_tokens: 5, max_completion_tokens: 6 }, 'max_tokens'],
    [{ n: 0 }, 'n'],
    [{ n: 5 }, 'n'],
    [{ temperature: 2.1 }, 'temperature'],
    [{ top_p: 0 }, 'top_p'],
    [{ top_k: -2 }, 'top_k'],
    [{ presence_penalty: -2.1 }, 'presence_penalty'],
    [{ frequency_penalty: 2.1 }, 'frequency_penalty'],
    [{ stop: '' }, 'stop'],
    [{ stop: Array(17).fill('a') }, 'stop'],
    [{ stop_token_ids: [10] }, 'stop_token_ids'],
    [{ stop_token_ids: [-1] }, 'stop_token_ids'],
    [{ ignore_eos: 1 }, 'ignore_eos'],
    [{ cache_salt: 1 }, 'cache_salt'],
    [{ logit_bias: [] }, 'logit_bias'],
    [{ logit_bias: { 10: 1 } }, 'logit_bias[10]'],
    [{ logit_bias: { a: 1 } }, 'logit_bias[a]'],
    [{ logit_bias: { 1: 100.5 } }, 'logit_bias[1]'],
    [{ logit_bias: { 1: '1' } }, 'logit_bias[1]'],
  ])('%j are refused', (values, param) => expect(refusalOf(() => read(values)).param).toBe(param));

  test('texts need a tokenizer', () => {
    const plain = engineWith({ tokenizer: null });
    expect(refusalOf(() => readOptions(fieldsOf({ stop: 'a' }), plain)).param).toBe('stop');
    expect(readDelivery(fieldsOf({}), plain).tokenIds).toBe(true);
    expect(readDelivery(fieldsOf({ return_token_ids: false }), plain).tokenIds).toBe(false);
    const format = { response_format: { type: 'json_object' } };
    expect(refusalOf(() => readFormatField(fieldsOf(format), plain)).param).toBe('response_format');
  });

  test('of a delivery', () => {
    const of = (values: object) => readDelivery(fieldsOf(values), engineWith());
    expect(of({})).toEqual({ stream: false, includeUsage: false, tokenIds: false });
    const options = { include_usage: true, include_obfuscation: false };
    expect(of({ stream: true, stream_options: options })).toMatchObject({ includeUsage: true });
    expect(of({ stream: true, stream_options: {} })).toMatchObject({ includeUsage: false });
    expect(refusalOf(() => of({ stream_options: {} })).param).toBe('stream_options');
    const odd = { stream: true, stream_options: { include_use: true } };
    expect(refusalOf(() => of(odd))).toMatchObject({
      param: 'stream_options.include_use',
      code: 'unknown_parameter',
      message: expect.stringContaining('Did you mean "include_usage"?'),
    });
  });

  test('fit into the context with the prompt', () => {
    const roomFor = (length: number, asked?: number, options: object = {}) =>
      limitToContext(
        {
          options,
          requestedTokens: asked,
          requestedField: 'max_tokens',
          promptField: 'prompt',
        } as never,
        length,
        engineWith(),
      );
    expect(roomFor(15, 5).maxNewTokens).toBe(5);
    expect(roomFor(15).maxNewTokens).toBe(5);
    expect(roomFor(15, undefined, { maxNewTokens: 3 }).maxNewTokens).toBe(3);
    expect(roomFor(15, undefined, { maxNewTokens: 16 }).maxNewTokens).toBe(5);
    expect(roomFor(19).maxNewTokens).toBe(1);
    expect(roomFor(15, 5, { minTokens: 5 }).maxNewTokens).toBe(5);
    const TOO_LONG = 'context_length_exceeded';
    expect(refusalOf(() => roomFor(20))).toMatchObject({ param: 'prompt', code: TOO_LONG });
    expect(refusalOf(() => roomFor(15, 6))).toMatchObject({ param: 'max_tokens', code: TOO_LONG });
    expect(refusalOf(() => roomFor(15, 5, { minTokens: 6 })).param).toBe('min_tokens');
  });
});

describe('formats', () => {
  const of = (values: object) => readFormatField(fieldsOf(values), { tokenizer: {} } as never);
  const schema = { type: 'object' };

  test.each<[values: object, found: object | null]>([
    [{}, null],
    [{ response_format: null }, null],
    [{ response_format: { type: 'text' } }, null],
    [
      { response_format: { type: 'json_object' } },
      { format: { jsonObject: true }, field: 'response_format' },
    ],
    [
      {
        response_format: { type: 'json_schema', json_schema: { name: 'n', strict: true, schema } },
      },
      { format: { schema }, field: 'response_format' },
    ],
    [
      { structured_outputs: { json: JSON.stringify(schema) } },
      { format: { schema }, field: 'structured_outputs.json' },
    ],
    [
      { structured_outputs: { regex: 'a+', json_object: false } },
      { format: { regex: 'a+' }, field: 'structured_outputs.regex' },
    ],
    [
      { structured_outputs: { json_object: true } },
      { format: { jsonObject: true }, field: 'structured_outputs.json_object' },
    ],
  ])('%j', (values, found) => expect(of(values)).toEqual(found));

  test.each<[values: object, param: string]>([
    [{ response_format: { type: 'xml' } }, 'response_format.type'],
    [{ response_format: { type: 'json_schema' } }, 'response_format.json_schema.schema'],
    [{ response_format: { type: 'text', more: 1 } }, 'response_format.more'],
    [
      { response_format: { type: 'json_schema', json_schema: { schema, odd: 1 } } },
      'response_format.json_schema.odd',
    ],
    [{ structured_outputs: {} }, 'structured_outputs'],
    [{ structured_outputs: { json: '{', odd: null } }, 'structured_outputs.json'],
    [{ structured_outputs: { json: 3 } }, 'structured_outputs.json'],
    [{ structured_outputs: { regex: 'a', choice: ['b'] } }, 'structured_outputs'],
    [
      { response_format: { type: 'json_object' }, structured_outputs: { regex: 'a' } },
      'structured_outputs',
    ],
  ])('%j is refused', (values, param) => expect(refusalOf(() => of(values)).param).toBe(param));

  test('are compiled before the answer begins', async () => {
    await requireCompiled({ format: { regex: 'a+' } as never, field: 'x' });
    await expect(requireCompiled({ format: { regex: '(' } as never, field: 'x' })).rejects.toThrow(
      expect.objectContaining({ status: 400, param: 'x', message: expect.stringMatching(/^x: /) }),
    );
  });
});
