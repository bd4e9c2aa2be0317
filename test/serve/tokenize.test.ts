// Tokens of texts and conversations, and texts of tokens, in vLLM's shapes.
import { ask, withServer } from './client.js';
import { FakeEngine, tokenizer } from './fake-engine.js';

const MESSAGES = [{ role: 'user', content: 'Hello' }];
const HELLO = [...tokenizer.encode('Hello')];

test('/tokenize returns the tokens of a text, and their spelling on request', () =>
  withServer(async (url, engine) => {
    const whole = { count: HELLO.length, max_model_len: 4096, tokens: HELLO };
    const { json } = await ask(`${url}/tokenize`, { body: { prompt: 'Hello', model: 'default' } });
    expect(json).toEqual({ ...whole, token_strs: null });
    const body = { prompt: 'Hello', return_token_strs: true, add_special_tokens: false };
    const bare = [...tokenizer.encode('Hello', { addSpecialTokens: false })];
    expect((await ask(`${url}/tokenize`, { body })).json).toEqual({
      count: bare.length,
      max_model_len: 4096,
      tokens: bare,
      token_strs: bare.map((id) => tokenizer.idToToken(id)),
    });
    expect((await ask(`${url}/tokenize`, { body: { prompt: '' } })).status).toBe(200);
    expect(engine.requests).toEqual([]);
  }));

test('counts the tokens of a text longer than any prompt', () =>
  withServer(
    async (url) => {
      const prompt = 'a b '.repeat(5000);
      const { json } = await ask(`${url}/tokenize`, { body: { prompt } });
      expect(json.count).toBe(tokenizer.encode(prompt).length);
      expect(json.max_model_len).toBe(64);
    },
    {},
    new FakeEngine(tokenizer, 64),
  ));

test('/tokenize returns the prompt of a conversation', () =>
  withServer(async (url, engine) => {
    const tools = [{ type: 'function', function: { name: 'weather' } }];
    await ask(`${url}/v1/chat/completions`, { body: { messages: MESSAGES, tools, max_tokens: 1 } });
    const body = { messages: MESSAGES, tools };
    const { json } = await ask(`${url}/tokenize`, { body });
    expect(json.tokens).toEqual(engine.requests[0]?.prompt);
    const open = { messages: MESSAGES, add_generation_prompt: false };
    const { ids } = tokenizer.applyChatTemplate(MESSAGES, {});
    expect((await ask(`${url}/tokenize`, { body: open })).json.tokens).toEqual([...ids]);
  }));

test('the reasoning of a message reaches the chat template', () => {
  const chatTemplate =
    '{% for m in messages %}{{ m.role }}({{ m.reasoning_content or "-" }}){{ m.content }};{% endfor %}';
  return withServer(
    async (url) => {
      const answer = { role: 'assistant', content: 'A', reasoning_content: 'why' };
      const messages = [...MESSAGES, answer, { ...answer, reasoning_content: null }];
      const { json } = await ask(`${url}/tokenize`, { body: { messages } });
      const written = 'user(-)Hello;assistant(why)A;assistant(-)A;';
      expect(tokenizer.decode(json.tokens)).toBe(written);
      const odd = { messages: [{ ...answer, reasoning_content: 5 }] };
      const { status, json: refused } = await ask(`${url}/tokenize`, { body: odd });
      expect([status, refused.error.param]).toEqual([400, 'messages[0].reasoning_content']);
    },
    { chatTemplate },
  );
});

test('/detokenize returns the text of tokens', () =>
  withServer(async (url) => {
    const { json } = await ask(`${url}/detokenize`, { body: { tokens: HELLO, model: 'default' } });
    expect(json).toEqual({ prompt: 'Hello' });
    expect((await ask(`${url}/detokenize`, { body: { tokens: [] } })).json).toEqual({ prompt: '' });
  }));

test.each<[string, object, number, string | null]>([
  ['/tokenize', {}, 400, 'prompt'],
  ['/tokenize', { prompt: [1] }, 400, 'prompt'],
  ['/tokenize', { prompt: 'a', messages: MESSAGES }, 400, 'prompt'],
  ['/tokenize', { prompt: 'a', temperature: 1 }, 400, 'temperature'],
  ['/tokenize', { prompt: 'a', model: 'other' }, 404, 'model'],
  ['/tokenize', { messages: [{ role: 'tool', content: '4' }] }, 400, 'messages[0].role'],
  ['/detokenize', {}, 400, 'tokens'],
  ['/detokenize', { tokens: [1, 1007] }, 400, 'tokens'],
  ['/detokenize', { tokens: 'a' }, 400, 'tokens'],
  ['/detokenize', { tokens: [1], model: 'other' }, 404, 'model'],
])('%s refuses %j', (path, body, status, param) =>
  withServer(async (url) => {
    const reply = await ask(url + path, { body });
    expect(reply).toMatchObject({ status, json: { error: { param } } });
  }),
);

test('both routes require the key and a tokenizer', async () => {
  const bodies = [
    ['/tokenize', { prompt: 'a' }],
    ['/detokenize', { tokens: [1] }],
  ] as const;
  for (const [path, body] of bodies) {
    await withServer(
      async (url) => {
        expect((await ask(url + path, { body })).status).toBe(401);
        const headers = { authorization: 'Bearer one' };
        expect((await ask(url + path, { body, headers })).status).toBe(200);
      },
      { apiKeys: ['one'] },
    );
    await withServer(
      async (url) => {
        const { status, json } = await ask(url + path, { body });
        expect({ status, ...json.error }).toMatchObject({ status: 400, code: 'no_tokenizer' });
      },
      {},
      new FakeEngine(null),
    );
  }
});
