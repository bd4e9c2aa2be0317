// Refused requests: the status, and the name of the wrong parameter.
import { once } from 'node:events';
import { request } from 'node:http';
import { connect } from 'node:net';
import { join } from 'node:path';

import { packageRoot } from '../../lib/runtime/package-root.js';
import { type InferenceServer, type ServeOptions, serve } from '../../lib/serve/index.js';
import { Tokenizer } from '../../lib/text/index.js';
import { ask } from './client.js';
import { FakeEngine, tokenizer } from './fake-engine.js';

const engine = new FakeEngine(tokenizer, 64);
const limits = { bodyBytes: 4096, answers: 4, prompts: 2, promptTokens: 40 };
let server: InferenceServer;
let url: string;

beforeAll(async () => {
  server = await serve(engine, { port: 0, apiKeys: ['first', 'second'], limits });
  url = server.url;
});
afterAll(() => server.kill());
afterEach(() => expect(engine.active).toBe(0));

const KEY = { authorization: 'Bearer second' };
const chat = [{ role: 'user', content: 'Hello' }];

/** A wrong field of a good request, and the error's parameter and words. */
type Wrong = readonly [fields: object, param: string, words: RegExp];

const sampling: readonly Wrong[] = [
  [{ temperature: -1 }, 'temperature', /a finite number from 0 to 2, got -1/],
  [{ temperature: 'hot' }, 'temperature', /got "hot"/],
  [{ top_p: 0 }, 'top_p', /above 0 and at most 1, got 0/],
  [{ top_p: -0.1 }, 'top_p', /above 0 and at most 1, got -0\.1/],
  [{ top_p: 1.5 }, 'top_p', /above 0 and at most 1, got 1\.5/],
  [{ top_p: '1' }, 'top_p', /above 0 and at most 1, got "1"/],
  [{ top_k: -2 }, 'top_k', /an integer of at least -1/],
  [{ top_k: 1.5 }, 'top_k', /an integer/],
  [{ min_p: 2 }, 'min_p', /from 0 to 1/],
  [{ repetition_penalty: 0 }, 'repetition_penalty', /of at least 0.01/],
  [{ repetition_penalty: 1e-44 }, 'repetition_penalty', /of at least 0.01/],
  [{ presence_penalty: 3 }, 'presence_penalty', /from -2 to 2/],
  [{ frequency_penalty: -3 }, 'frequency_penalty', /from -2 to 2/],
  [{ logit_bias: { 5: 101 } }, 'logit_bias[5]', /from -100 to 100/],
  [{ logit_bias: { x: 1 } }, 'logit_bias[x]', /tokens below 1007/],
  [{ logit_bias: { 1007: 1 } }, 'logit_bias[1007]', /tokens below 1007/],
  [{ logit_bias: [1] }, 'logit_bias', /an object/],
  [{ n: 5 }, 'n', /from 1 to 4, got 5/],
  [{ n: 0 }, 'n', /from 1 to 4/],
  [{ max_tokens: 0 }, 'max_tokens', /of at least 1/],
  [{ max_tokens: 1e9 }, 'max_tokens', /at most 64 tokens of prompt and answer/],
  [{ max_completion_tokens: 1e9 }, 'max_completion_tokens', /Lower max_completion_tokens/],
  [{ max_tokens: 3, max_completion_tokens: 4 }, 'max_tokens', /max_completion_tokens, 4/],
  [{ max_tokens: 2, min_tokens: 3 }, 'min_tokens', /at most the 2 new tokens/],
  [{ min_tokens: 2 ** 31 }, 'min_tokens', /at most the \d+ new tokens/],
  [{ seed: 0.5 }, 'seed', /an integer/],
  [{ stop: '' }, 'stop', /without an empty string/],
  [{ stop: Array(17).fill('a') }, 'stop', /a list of at most 16/],
  [{ stop: [...Array(17).fill('a'), ''] }, 'stop', /a list of at most 16/],
  [{ stop: ['a', ''] }, 'stop', /without an empty string/],
  [{ stop: ['a', 3] }, 'stop', /a string, or a list/],
  [{ stop: { a: 'a' } }, 'stop', /a string, or a list/],
  [{ stop_token_ids: [1007] }, 'stop_token_ids', /tokens below 1007/],
  [{ stream: 'yes' }, 'stream', /true or false/],
  [{ stream_options: {} }, 'stream_options', /"stream": true with it/],
  [{ stream: true, stream_options: { include_usage: 1 } }, 'stream_options.include_usage', /true/],
  [
    { stream: true, stream_options: { include_usages: true } },
    ...(['stream_options.include_usages', /Did you mean "include_usage"/] as const),
  ],
  [{ functions: [{}] }, 'functions', /functions is not supported/],
  [
    { response_format: { type: 'yaml' } },
    ...(['response_format.type', /"json_object" or "json_schema"/] as const),
  ],
  [
    { response_format: { type: 'json_schema', json_schema: { schema: { not: {} } } } },
    ...(['response_format', /without "not" here/] as const),
  ],
  [{ structured_outputs: {} }, 'structured_outputs', /one of json, regex, choice/],
  [{ structured_outputs: { regex: 'a', choice: ['b'] } }, 'structured_outputs', /regex and choice/],
  [{ structured_outputs: { structural_tag: '' } }, 'structured_outputs.structural_tag', /unknown/],
  [{ structured_outputs: { regex: '(' } }, 'structured_outputs.regex', /balanced parentheses/],
  [{ structured_outputs: { json: '{' } }, 'structured_outputs.json', /not JSON/],
  [
    { structured_outputs: { json_object: true }, response_format: { type: 'json_object' } },
    ...(['structured_outputs', /both/] as const),
  ],
  [{ temprature: 1 }, 'temprature', /Did you mean "temperature"/],
  [{ best_of: 3 }, 'best_of', /send n/],
];

test('accepts one stop string, and a list of 16', async () => {
  for (const stop of [Array(16).fill('zz'), ['zz'], 'zz', []]) {
    const body = { prompt: 'a', max_tokens: 1, stop };
    const { status } = await ask(`${url}/v1/completions`, { body, headers: KEY });
    expect([stop, status]).toEqual([stop, 200]);
  }
});

/** Answers by the number of tokens in the prompt. */
async function statusOf(address: string, tokens: number): Promise<string> {
  const body = { prompt: Array(tokens).fill(65), max_tokens: 1 };
  const { status, json } = await ask(`${address}/v1/completions`, { body, headers: KEY });
  return status === 200 ? '200' : `${status}: ${json.error.message}`;
}

test('a prompt may have as many tokens as the limit', async () => {
  expect(await statusOf(url, 40)).toBe('200');
  expect(await statusOf(url, 41)).toMatch(/^400: .*at most 40 tokens, got 41/);
});

test('a prompt leaves room for one token of the answer, for any limit', async () => {
  const small = new FakeEngine(tokenizer, 16);
  const other = await serve(small, { port: 0, limits: { ...limits, promptTokens: 40 } });
  expect(await statusOf(other.url, 15)).toBe('200');
  expect(await statusOf(other.url, 16)).toMatch(/^400: .*at most 15 tokens, got 16/);
  await other.kill();
});

const texts: readonly Wrong[] = [
  ...sampling,
  [{ tools: [{}] }, 'tools', /only (chats|the template of a chat)/],
  [{ suffix: 'x' }, 'suffix', /not supported: the model only continues a text at its end/],
  [{ prompt: undefined }, 'prompt', /a string or tokens, got nothing/],
  [{ prompt: '' }, 'prompt', /at least one token/],
  [{ prompt: [] }, 'prompt', /1 to 2 prompts, got 0/],
  [{ prompt: ['a', 'b', 'c'] }, 'prompt', /1 to 2 prompts, got 3/],
  [{ prompt: [1, 1007] }, 'prompt', /tokens below 1007/],
  [{ prompt: [1, -1] }, 'prompt', /tokens below/],
  [{ prompt: [[1], [1.5]] }, 'prompt[1]', /tokens below/],
  [{ prompt: { a: 1 } }, 'prompt', /a string, or a list of tokens/],
  [{ prompt: Array(41).fill(1) }, 'prompt', /at most 40 tokens, got 41/],
  [{ logprobs: 21 }, 'logprobs', /from 0 to 20/],
  [{ logprobs: 1, echo: true }, 'echo', /false with logprobs/],
];

const nestLists = (levels: number): unknown =>
  JSON.parse(`${'['.repeat(levels)}${']'.repeat(levels)}`);
const message = (fields: object) => ({ messages: [{ ...chat[0], ...fields }] });
const assistant = (fields: object) => message({ role: 'assistant', content: null, ...fields });
const FUNCTION = { type: 'function', function: { name: 'f', parameters: { type: 'object' } } };
const image = { type: 'image_url', image_url: { url: 'data:' } };
const chats: readonly Wrong[] = [
  ...sampling,
  [{ messages: undefined }, 'messages', /a list of messages/],
  [{ messages: [] }, 'messages', /a list of messages/],
  [{ messages: ['Hello'] }, 'messages[0]', /an object with role and content/],
  [message({ role: 'robot' }), 'messages[0].role', /system, developer, user/],
  [message({ content: null }), 'messages[0].content', /a string, or a list of text parts/],
  [message({ content: [image] }), 'messages[0].content[0].type', /"image_url" is not text/],
  [message({ content: [{ type: 'text' }] }), 'messages[0].content[0]', /"type": "text"/],
  [message({ tool_calls: [{}] }), 'messages[0].tool_calls', /calls of the role "assistant"/],
  [assistant({ tool_calls: [{}] }), 'messages[0].tool_calls[0]', /"type": "function"/],
  [assistant({ tool_calls: {} }), 'messages[0].tool_calls', /a list of at most 128 calls/],
  [
    assistant({ tool_calls: [{ function: { arguments: '{}' } }] }),
    ...(['messages[0].tool_calls[0].function.name', /a name/] as const),
  ],
  [
    assistant({ tool_calls: [{ id: 5, function: { name: 'f' } }] }),
    ...(['messages[0].tool_calls[0].id', /a string, got 5/] as const),
  ],
  ...['{"a": ', '[1]', '"a"', 'null'].map(
    (text) =>
      [
        assistant({ tool_calls: [{ function: { name: 'f', arguments: text } }] }),
        ...(['messages[0].tool_calls[0].function.arguments', /a JSON object as text/] as const),
      ] as const,
  ),
  [
    assistant({ tool_calls: [{ function: { name: 'f', arguments: '{}' } }] }),
    ...(['messages[0].tool_calls', /chat template does not write calls/] as const),
  ],
  [assistant({ reasoning: 5 }), 'messages[0].reasoning_content', /a string, got 5/],
  [{ reasoning_effort: 'most' }, 'reasoning_effort', /low, medium, high/],
  [message({ name: 5 }), 'messages[0].name', /a string/],
  [{ top_logprobs: 2 }, 'top_logprobs', /"logprobs": true with it/],
  [{ logprobs: true, top_logprobs: 21 }, 'top_logprobs', /from 0 to 20/],
  [{ tool_choice: 'required' }, 'tool_choice', /"auto" or "none" without tools/],
  [{ tool_choice: { type: 'function' } }, 'tool_choice', /"required", or \{ "type": "function"/],
  [
    { tools: [FUNCTION], tool_choice: { type: 'function', function: { name: 'g' } } },
    ...(['tool_choice.function.name', /the name of a tool, got "g"/] as const),
  ],
  [{ tools: {} }, 'tools', /a list of at most 128 functions/],
  [{ tools: Array(129).fill({}) }, 'tools', /a list of at most 128 functions, got 129/],
  [{ tools: [FUNCTION, 'f'] }, 'tools[1]', /"type": "function"/],
  [{ tools: [{ type: 'web_search' }] }, 'tools[0]', /"type": "function"/],
  [{ tools: [{ type: 'function', function: {} }] }, 'tools[0].function.name', /a name/],
  [{ tools: [{ ...FUNCTION, deep: nestLists(64) }] }, 'tools[0]', /at most 64 levels/],
  [message({ role: 'tool', tool_call_id: 5 }), 'messages[0].tool_call_id', /a string/],
  [{ modalities: ['audio'] }, 'modalities', /not supported/],
  [{ chat_template_kwargs: { deep: nestLists(64) } }, 'chat_template_kwargs', /at most 64 levels/],
  [{ chat_template_kwargs: { deep: nestLists(900) } }, 'chat_template_kwargs', /at most 64 levels/],
  [{ prompt: 'x' }, 'prompt', /an unknown parameter/],
  [
    { guided_json: {} },
    'guided_json',
    /parameter\. Send "structured_outputs": \{ "json": \.\.\. \}/,
  ],
  [{ options: { num_ctx: 8 } }, 'options', /parameter\. Send its fields beside "model"/],
  [{ n_predict: 8 }, 'n_predict', /parameter\. Send "max_tokens" instead\.$/],
  [{ typ_p: 1 }, 'typ_p', /parameter\. Remove it: the samplers are/],
  [{ constructor: 1 }, 'constructor', /an unknown parameter\.$/],
  [{ moderation: {} }, 'moderation', /not supported: the server checks no contents/],
  [{ skip_special_tokens: false }, 'skip_special_tokens', /not supported/],
  [
    { response_format: { type: 'json_object', schema: {} } },
    ...(['response_format.schema', /takes a schema as "json_schema"/] as const),
  ],
  [
    { continue_final_message: true, add_generation_prompt: true },
    ...(['add_generation_prompt', /false with/] as const),
  ],
];

async function expectRefusal(path: string, body: object, param: string, words: RegExp) {
  const { status, json } = await ask(url + path, { body, headers: KEY });
  expect({ status, ...json.error }).toEqual({
    status: 400,
    type: 'invalid_request_error',
    param,
    message: expect.stringMatching(words),
    code: json.error.code,
  });
}

test.each(texts)('completions refuse %j', (fields, param, words) =>
  expectRefusal('/v1/completions', { prompt: 'Hello', ...fields }, param, words),
);

test.each(chats)('chats refuse %j', (fields, param, words) =>
  expectRefusal('/v1/chat/completions', { messages: chat, ...fields }, param, words),
);

test.each([
  ['/v1/completions', 'prompt', (text: string) => ({ prompt: text })],
  ['/v1/chat/completions', 'messages', (text: string) => message({ content: text })],
] as const)('%s refuses a long text before it becomes tokens', async (path, param, body) => {
  const { json, status } = await ask(url + path, { body: body('a b '.repeat(500)), headers: KEY });
  expect(status).toBe(400);
  expect(json.error).toMatchObject({
    param,
    code: 'context_length_exceeded',
    message: expect.stringMatching(/expected at most 40 tokens, got at least \d+\./),
  });
});

test('options without effect are accepted', async () => {
  const body = {
    messages: [
      { role: 'user', content: 'a', id: 'a', cache_control: { type: 'ephemeral' } },
      { role: 'assistant', content: null, thinking_blocks: [{}], reasoning_details: [{}] },
    ],
    tools: [],
    tool_choice: 'none',
    skip_special_tokens: true,
    include_stop_str_in_output: false,
    use_beam_search: false,
    cache_prompt: true,
    prompt_cache_options: { ttl: '1h' },
    response_format: { type: 'text' },
    chat_template_kwargs: { deep: nestLists(63) },
    user: 'a',
    metadata: {},
    store: false,
    n: null,
    stop: null,
    logit_bias: null,
  };
  const { status, json } = await ask(`${url}/v1/chat/completions`, { body, headers: KEY });
  expect([status, json.error]).toEqual([200, undefined]);
});

const UNREAD = '{% for m in messages %}{{ m.content }}{% endfor %}';

test('tools that the template does not read are refused', async () => {
  const odd = await serve(engine, { port: 0, chatTemplate: UNREAD });
  const body = { messages: chat, tools: [FUNCTION] };
  const { status, json } = await ask(`${odd.url}/v1/chat/completions`, { body });
  expect({ status, ...json.error }).toMatchObject({
    status: 400,
    param: 'tools',
    code: 'unsupported_parameter',
    message: expect.stringMatching(/chat template does not read tools/),
  });
  await odd.stop();
});

const known = (label: string): string =>
  `{% for m in messages %}{% if ${label} %}{{ m.role }}: {{ m.content|trim }}{% endif %}{% endfor %}`;

/** A template, messages, and the message that it drops; null if it drops no message. */
test.each<[string, string, readonly object[], number | null]>([
  ['roles that it does not know', known("m.role != 'tool'"), [{ role: 'tool', content: '4' }], 1],
  ['functions', known("m.role == 'user'"), [{ role: 'function', content: 'b' }], 1],
  ['all but the last', known('loop.last'), [{ role: 'user', content: 'Bye' }], null],
  ['all but the first', known('loop.first'), [{ role: 'user', content: 'Bye' }], 1],
  ['what says nothing', known("m.role == 'user'"), [{ role: 'tool', content: ' \n' }], null],
  [
    ...([
      'what has been thought',
      "{% for m in messages %}{{ m.content.split('</think>')[-1] }}{% endfor %}",
    ] as const),
    ...([[{ role: 'assistant', content: '<think>a</think>' }], null] as const),
  ],
  [
    ...(['text as JSON', '{% for m in messages %}{{ m.content|tojson }}{% endfor %}'] as const),
    ...([[{ role: 'tool', content: 'a "b"\n' }], null] as const),
  ],
  [
    ...([
      'messages of alternating roles',
      `${known('true')}{% if messages[0].content != 'Hello' %}{{ raise_exception('odd') }}{% endif %}`,
    ] as const),
    ...([[{ role: 'tool', content: '  b ' }], null] as const),
  ],
])('a message that a template loses is refused: %s', async (_, chatTemplate, more, lost) => {
  const odd = await serve(engine, { port: 0, chatTemplate });
  const messages = [...chat, ...more];
  const { status, json } = await ask(`${odd.url}/v1/chat/completions`, {
    body: { messages, max_tokens: 1 },
  });
  await odd.stop();
  if (lost === null) expect({ status, error: json.error }).toEqual({ status: 200 });
  else {
    const { role } = messages[lost] as { role: string };
    expect({ status, ...json.error }).toMatchObject({
      status: 400,
      param: `messages[${lost}].role`,
      message: expect.stringContaining(`got "${role}"`),
    });
  }
});

test("the error of the tokenizer's template does not reveal its folder", async () => {
  const folder = join(packageRoot(), 'test/golden/transformers/tokenizers/llama2');
  const odd = await serve(new FakeEngine(Tokenizer.fromPretrained(folder)), { port: 0 });
  const body = { messages: [...chat, ...chat] };
  const { status, json } = await ask(`${odd.url}/v1/chat/completions`, { body });
  await odd.stop();
  expect([status, json.error.code]).toEqual([400, 'DS_DATA']);
  expect(json.error.message).toMatch(/^chat template "default": .* roles must alternate/);
});

test('the error of a template contains its own message', async () => {
  const odd = await serve(engine, {
    port: 0,
    chatTemplate: "{{ raise_exception('roles must alternate') }}",
  });
  const reply = await ask(`${odd.url}/v1/chat/completions`, { body: { messages: chat } });
  expect(reply).toMatchObject({ status: 400, json: { error: { code: 'DS_DATA' } } });
  expect(reply.json.error.message).toMatch(/roles must alternate/);
  await odd.stop();
});

test.each([
  ['no key', {}, 'missing_api_key'],
  ['a wrong key', { authorization: 'Bearer third' }, 'invalid_api_key'],
  ['half a key', { authorization: 'Bearer secon' }, 'invalid_api_key'],
  ['another scheme', { authorization: 'Basic second' }, 'missing_api_key'],
])('%s is 401, and only below /v1', async (_, headers, code) => {
  for (const [path, body] of [['/v1/completions', { prompt: 'x' }], ['/v1/models'], ['/v1/x']]) {
    const reply = await ask(url + path, { body, headers: headers as Record<string, string> });
    expect(reply).toMatchObject({ status: 401, json: { error: { code } } });
    expect(reply.headers['www-authenticate']).toBe('Bearer');
  }
  expect((await ask(`${url}/health`, { headers: headers as Record<string, string> })).status).toBe(
    200,
  );
});

test('an absolute URL as target counts as its path', async () => {
  const { hostname, port } = new URL(url);
  const statusOf = async (path: string, headers: Record<string, string>) => {
    const sent = request({ hostname, port, path, headers, agent: false }).end();
    const [{ statusCode }] = await once(sent, 'response');
    sent.destroy();
    return statusCode;
  };
  expect(await statusOf('http://models.example/v1/models?all', KEY)).toBe(200);
  expect(await statusOf('http://models.example:80/v1/models/default', KEY)).toBe(200);
  expect(await statusOf('HTTPS://models.example/v1/models', {})).toBe(401);
  expect(await statusOf('http://models.example', KEY)).toBe(404);
});

test('unknown paths, methods and models', async () => {
  const headers = KEY;
  expect(await ask(`${url}/v1/moderations`, { headers })).toMatchObject({ status: 404 });
  const wrong = await ask(`${url}/v1/completions`, { headers });
  expect(wrong).toMatchObject({ status: 405, headers: { allow: 'POST' } });
  expect((await ask(`${url}/health`, { body: {} })).headers.allow).toBe('GET');
  expect((await ask(`${url}/constructor`)).status).toBe(404);
  const body = { model: 'gpt-5', prompt: 'x' };
  const other = await ask(`${url}/v1/completions`, { headers, body });
  expect(other).toMatchObject({ status: 404, json: { error: { code: 'model_not_found' } } });
});

const utf8 = Buffer.from('{"prompt": "\xc3"}', 'latin1');

test.each([
  ['malformed JSON', '{"prompt": ', 400, /expected JSON/],
  ['nothing', '', 400, /expected JSON/],
  ['a list', '[1]', 400, /a JSON object, got an array/],
  ['bad UTF-8', utf8, 400, /expected UTF-8/],
  ['a body beyond the limit', Buffer.alloc(5000, 32), 413, /at most 4096 bytes/],
])('%s', async (_, body, status, words) => {
  const reply = await ask(`${url}/v1/completions`, { body, headers: KEY });
  expect(reply.status).toBe(status);
  expect(reply.json.error.message).toMatch(words);
});

test('bodies of 10 MB and more are refused, however they are sent', async () => {
  const body = Buffer.alloc(10e6, 32);
  const wide = await serve(engine, { port: 0 });
  const ways = [
    ['x-plain', ''],
    ['transfer-encoding', 'chunked'],
    ['expect', '100-continue'],
  ];
  for (const [name, value] of ways) {
    const headers = { [name as string]: value as string };
    const reply = await ask(`${wide.url}/v1/completions`, { body, headers });
    expect(reply).toMatchObject({ status: 413, json: { error: { code: 'body_too_large' } } });
  }
  await wide.stop();
});

test.each([
  ['a form', { 'content-type': 'application/x-www-form-urlencoded' }, /expected application\/json/],
  [
    'compression',
    { 'content-encoding': 'gzip' },
    /Content-Encoding: expected no header, .* got "gzip"/,
  ],
])('%s is 415', async (_, headers, words) => {
  const sent = { body: 'a=b', headers: { ...KEY, ...headers } };
  const reply = await ask(`${url}/v1/completions`, sent);
  expect(reply.status).toBe(415);
  expect(reply.json.error.message).toMatch(words);
});

test('invalid HTTP gets an answer', async () => {
  const socket = connect(Number(new URL(url).port), '127.0.0.1');
  socket.end('EHLO\r\n\r\n');
  const chunks: Buffer[] = [];
  for await (const chunk of socket) chunks.push(chunk as Buffer);
  expect(Buffer.concat(chunks).toString()).toMatch(/^HTTP\/1\.1 400 .*no HTTP\/1\.1 request/s);
});

test('too large headers get an error that explains it', async () => {
  const socket = connect(Number(new URL(url).port), '127.0.0.1');
  socket.write(`GET /health HTTP/1.1\r\nhost: localhost\r\nx: ${'y'.repeat(2 ** 15)}\r\n\r\n`);
  const chunks: Buffer[] = [];
  for await (const chunk of socket) chunks.push(chunk as Buffer);
  expect(Buffer.concat(chunks).toString()).toMatch(/^HTTP\/1\.1 431 .*16 KiB/s);
});

test.each([
  [{ port: -1 }, 'serve port'],
  [{ ports: 1 }, 'Did you mean "port"'],
  [{ limits: { answers: 0 } }, 'serve limits answers'],
  [{ limits: { anwers: 1 } }, 'Did you mean "answers"'],
  [{ host: 5 }, 'serve host'],
])('serve(engine, %j) is refused', async (options, words) => {
  const serveOptions = { port: 0, ...options } as ServeOptions;
  await expect(serve(engine, serveOptions)).rejects.toThrow(words);
});

test('an invalid port is refused', async () => {
  await expect(serve(engine, { port: 65_536 })).rejects.toMatchObject({
    code: 'DS_ARGUMENT',
    message: expect.stringMatching(/serve port: expected a port, 0 to 65535, got 65536/),
  });
});

test('the error of a used port names it', async () => {
  const port = Number(new URL(url).port);
  await expect(serve(engine, { port })).rejects.toThrow(/an address and a port that are free/);
});
