// A permanent failure of the engine ends requests and /health; the error of one request does not.
import { once } from 'node:events';

import { DsError } from '../../lib/errors.js';
import { ask, eventsOf, until, withServer } from './client.js';
import { FakeEngine, tokenizer } from './fake-engine.js';

const PATH = '/v1/completions';
const prompt = [1, 2, 3];
const lost = new DsError({
  code: 'DS_COMM',
  op: 'process group',
  expected: 'every rank to stay until the end',
  got: 'rank 1: ended or its connection broke',
});

class FailingEngine extends FakeEngine {
  failure: DsError | null = null;
}

const withFailing = (
  body: (url: string, engine: FailingEngine, failed: Promise<Error>) => Promise<void>,
): Promise<void> => {
  const engine = new FailingEngine(tokenizer);
  return withServer((url, _, server) => body(url, engine, server.failed), {}, engine);
};

test('a lost rank ends running requests with its name, which /health reports from then on', () =>
  withFailing(async (url, engine, failed) => {
    engine.pace = async (place) => {
      const { signal } = engine.requests.at(-1) ?? {};
      if (place >= 2 && signal?.aborted === false) await once(signal, 'abort');
    };
    const whole = ask(url + PATH, { body: { prompt } });
    const streamed = ask(url + PATH, { body: { prompt, stream: true } });
    await until(() => engine.active === 2);
    expect((await ask(`${url}/health`)).status).toBe(200);
    engine.failure = lost;
    const health = await ask(`${url}/health`);
    expect(health).toMatchObject({ status: 503, json: { status: 'failed' } });
    expect(health.json.reason).toMatch(/rank 1: ended/);
    expect(await failed).toBe(lost);
    const error = { code: 'engine_failed' };
    expect(await whole).toMatchObject({ status: 503, json: { error } });
    const { error: last } = eventsOf((await streamed).text).events.at(-1);
    expect(last).toMatchObject({ ...error, message: expect.stringContaining('rank 1: ended') });
  }));

test.each([false, true])('a request receives the failure itself (stream: %s)', (stream) =>
  withFailing(async (url, engine) => {
    engine.pace = async (place) => {
      if (place < 4) return;
      engine.failure = lost;
      throw lost;
    };
    const { status, text, json } = await ask(url + PATH, { body: { prompt, stream } });
    const error = stream ? eventsOf(text).events.at(-1).error : json.error;
    expect(status).toBe(stream ? 200 : 503);
    expect(error).toMatchObject({ code: 'engine_failed', type: 'service_unavailable_error' });
    expect(error.message).toMatch(/rank 1: ended/);
    const next = await ask(url + PATH, { body: { prompt } });
    expect(next).toMatchObject({ status: 503, json: { error: { code: 'engine_failed' } } });
    expect((await ask(`${url}/v1/models`)).status).toBe(503);
  }),
);

test('a failure is detected without requests', () =>
  withFailing(async (_, engine, failed) => {
    engine.failure = lost;
    expect(await failed).toBe(lost);
  }));

test('a failed request does not affect the server', () => {
  const engine = new FailingEngine(tokenizer);
  return withServer(
    async (url, _, server) => {
      engine.failAt = { place: 0, error: lost };
      expect((await ask(url + PATH, { body: { prompt } })).status).toBe(500);
      engine.failAt = null;
      expect((await ask(url + PATH, { body: { prompt } })).status).toBe(200);
      expect((await ask(`${url}/health`)).status).toBe(200);
      expect(server.failure).toBeNull();
    },
    { report: () => {} },
    engine,
  );
});
