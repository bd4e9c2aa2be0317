// Requests from pages of other origins, and the permission of --cors.
import { serve } from '../../lib/serve/index.js';
import { ask, withServer } from './client.js';

const ORIGIN = 'https://a.example';
const preflight = {
  method: 'OPTIONS',
  headers: {
    origin: ORIGIN,
    'access-control-request-method': 'POST',
    'access-control-request-headers': 'authorization,content-type,x-stainless-os',
  },
};

test('without the option, no origin is allowed', () =>
  withServer(async (url) => {
    const { status, headers, json } = await ask(`${url}/v1/models`, preflight);
    expect(status).toBe(405);
    expect(json.error.message).toMatch(/got OPTIONS\. Start the server with --cors ORIGIN/);
    expect(headers['access-control-allow-origin']).toBeUndefined();
    const { headers: others } = await ask(`${url}/health`, { headers: { origin: ORIGIN } });
    expect(others['access-control-allow-origin']).toBeUndefined();
  }));

test('a page of the origin may send a key, and receives error details', () =>
  withServer(
    async (url) => {
      const first = await ask(`${url}/v1/completions`, preflight);
      expect(first).toMatchObject({ status: 204, text: '' });
      expect(first.headers).toMatchObject({
        'access-control-allow-origin': ORIGIN,
        'access-control-allow-methods': 'GET, POST, DELETE',
        'access-control-allow-headers': 'authorization,content-type,x-stainless-os',
        'access-control-max-age': '86400',
      });
      const headers = { origin: ORIGIN };
      const refused = await ask(`${url}/v1/completions`, { body: { prompt: 'a' }, headers });
      expect(refused.status).toBe(401);
      const key = { ...headers, authorization: 'Bearer one' };
      const body = { prompt: 'a', max_tokens: 2, stream: true };
      const streamed = await ask(`${url}/v1/completions`, { body, headers: key });
      expect(streamed.text).toContain('[DONE]');
      for (const reply of [first, refused, streamed]) {
        expect(reply.headers['access-control-allow-origin']).toBe(ORIGIN);
        expect(reply.headers.vary).toBe('Origin');
      }
    },
    { cors: ORIGIN, apiKeys: ['one'] },
  ));

test('a page of another origin is not allowed', () =>
  withServer(
    async (url) => {
      const headers = { ...preflight.headers, origin: 'https://b.example' };
      const { status, headers: got } = await ask(`${url}/v1/models`, { ...preflight, headers });
      expect(status).toBe(405);
      expect(got['access-control-allow-origin']).toBeUndefined();
      expect(got.vary).toBe('Origin');
    },
    { cors: ORIGIN },
  ));

test('with *, any origin is allowed', () =>
  withServer(
    async (url) => {
      expect((await ask(`${url}/v1/models`, preflight)).status).toBe(204);
      const { headers } = await ask(`${url}/health`, { headers: { origin: 'null' } });
      expect(headers['access-control-allow-origin']).toBe('*');
    },
    { cors: '*' },
  ));

test.each(['a.example', 'https://a.example/', 'https://a.example/x', ''])(
  '%j is no origin',
  async (cors) => {
    const made = serve(new Promise<never>(() => {}), { port: 0, cors });
    await expect(made).rejects.toMatchObject({ code: 'DS_ARGUMENT', op: 'serve cors' });
  },
);
