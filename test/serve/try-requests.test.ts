// A few random siblings of valid requests; scripts/try-requests.mjs sends them for an hour.
import { serve } from '../../lib/serve/index.js';
import { below } from '../support/random.js';
import { until } from './client.js';
import { FakeEngine, tokenizer } from './fake-engine.js';
import { answersIn, faultOf } from './read-answers.js';
import { tryRequests } from './try-requests.js';

/** 2000 by hand: `DS_TEST_REQUESTS=2000 npx jest test/serve/try-requests`. */
const REQUESTS = Number(process.env.DS_TEST_REQUESTS ?? 150);

test(`${REQUESTS} random requests get documented answers`, async () => {
  const reported: unknown[] = [];
  const engine = new FakeEngine(tokenizer, 256);
  const server = await serve(engine, {
    port: 0,
    model: 'tiny',
    apiKeys: ['key'],
    report: (item) => reported.push(item),
    limits: { bodyBytes: 200_000, bodySeconds: 4, headSeconds: 2 },
  });
  let left = REQUESTS;
  const options = { url: server.url, key: 'key', seed: below(2 ** 31), clients: 8 };
  const { faults, answers, goodAnswers } = await tryRequests({
    ...options,
    goesOn: () => left-- > 0,
  });
  expect({ faults, reported }).toEqual({ faults: [], reported: [] });
  expect(answers).toBeGreaterThan(REQUESTS / 2);
  expect(goodAnswers).toBeGreaterThan(0);
  await until(() => server.lives.size + server.admission.running + server.bodies.bytes === 0);
  expect(engine.active).toBe(0);
  await server.stop();
});

test('faults of answers are found', () => {
  const answer = (status: number, body: string) =>
    answersIn(Buffer.from(`HTTP/1.1 ${status} x\r\ncontent-length: ${body.length}\r\n\r\n${body}`));
  const faultIn = (status: number, body: string) => {
    const [found] = answer(status, body).answers;
    return found && faultOf(found);
  };
  const error = { message: 'm', type: 't', param: null, code: null };
  expect(faultIn(400, JSON.stringify({ error }))).toBeNull();
  expect(faultIn(400, JSON.stringify({ error: { ...error, message: '' } }))).toMatch(/status 400/);
  expect(faultIn(400, '')).toMatch(/status 400/);
  expect(faultIn(500, JSON.stringify({ error }))).toMatch(/status 500/);
  expect(faultIn(200, '{"choices": []}')).toMatch(/odd answer/);
  expect(faultIn(200, 'no')).toMatch(/no JSON/);
  expect(() => answersIn(Buffer.from('nothing\r\n\r\n'))).toThrow(/no status line/);
});
