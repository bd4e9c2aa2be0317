// Priorities, keys and their limits over HTTP.
import { ask, until, withServer } from './client.js';

const body = { prompt: 'a', max_tokens: 2 };
const withKey = (key: string) => ({ headers: { authorization: `Bearer ${key}` } });

test.each([
  ['/v1/completions', body],
  ['/v1/chat/completions', { messages: [{ role: 'user', content: 'a' }], max_tokens: 2 }],
  ['/v1/responses', { input: 'a', max_output_tokens: 2 }],
])('%s passes the priority to the engine', (path, input) =>
  withServer(
    async (url, engine) => {
      const { status } = await ask(url + path, { body: { ...input, priority: -7 } });
      expect(status).toBe(200);
      expect(engine.requests[0]).toMatchObject({ priority: -7 });
      expect(engine.requests[0]).not.toHaveProperty('client');
    },
    { chatTemplate: '{% for m in messages %}{{ m.content }}{% endfor %}' },
  ),
);

test('another priority than an integer is refused', () =>
  withServer(async (url) => {
    for (const priority of [1.5, 'high', 2 ** 60]) {
      const { status, json } = await ask(`${url}/v1/completions`, { body: { ...body, priority } });
      expect([status, json.error.param]).toEqual([400, 'priority']);
    }
  }));

test('each key is a client, in any spelling of the header; no key reaches the engine', () =>
  withServer(
    async (url, engine) => {
      for (const authorization of ['Bearer one', 'bearer  one ', 'Bearer two']) {
        await ask(`${url}/v1/completions`, { body, headers: { authorization } });
      }
      const clients = engine.requests.map(({ client }) => client);
      expect(clients[0]).toBe(clients[1]);
      expect(new Set(clients).size).toBe(2);
      expect(clients.join()).not.toMatch(/one|two/);
    },
    { apiKeys: ['one', 'two'] },
  ));

test.each([
  [{ requests: 4 }, 2],
  [{ requests: 4, keyRequests: 3 }, 3],
])('one key cannot use all places: %j', (limits, limit) =>
  withServer(
    async (url, engine) => {
      let open = (): void => {};
      const opened = new Promise<void>((resolve) => {
        open = resolve;
      });
      engine.pace = () => opened;
      const send = (key: string) => ask(`${url}/v1/completions`, { body, ...withKey(key) });
      const under = Array.from({ length: limit }, () => send('one'));
      await until(() => engine.active === limit);
      const refused = await send('one');
      expect([refused.status, refused.json.error.code]).toEqual([429, 'queue_full']);
      const other = send('two');
      await until(() => engine.active === limit + 1);
      open();
      const replies = await Promise.all([...under, other]);
      expect(replies.map(({ status }) => status)).toEqual(Array(limit + 1).fill(200));
    },
    { apiKeys: ['one', 'two'], limits },
  ),
);
