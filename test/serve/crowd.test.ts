// Many clients at once: every good request is answered in full, every bad one with its error, and nothing is left.
import { type InferenceServer, serve } from '../../lib/serve/index.js';
import { ask, eventsOf, until } from './client.js';
import { type Outcome, runCrowd, statusOf } from './crowd.js';
import { FakeEngine, textOf, tokenizer } from './fake-engine.js';

const CLIENTS = Number(process.env.DS_TEST_CLIENTS ?? 100);
const TOKENS = 40;

const promptOf = (i: number) => [1 + (i % 100), 2 + (i >> 3)];

/** What a client read, whole or in events. */
function saidBy(text: string): string {
  if (!text.startsWith('data: ')) return JSON.parse(text).choices[0].text;
  const { events, isDone } = eventsOf(text);
  return isDone ? events.map(({ choices }) => choices[0].text).join('') : 'cut off';
}

function expectOutcome({ kind, status, text }: Outcome, i: number): void {
  if (kind === 'gone') return;
  if (kind === 'nonsense') {
    expect({ i, status }).toEqual({ i, status: statusOf(i) });
    expect(JSON.parse(text).error.message).not.toBe('');
    return;
  }
  expect({ i, kind, status }).toEqual({ i, kind, status: 200 });
  expect(saidBy(text)).toBe(textOf(promptOf(i), 0, TOKENS));
}

test(`${CLIENTS} clients`, async () => {
  const engine = new FakeEngine(tokenizer);
  const server: InferenceServer = await serve(engine, { port: 0, apiKeys: ['key'] });
  const bodyOf = (i: number) => ({ prompt: promptOf(i), max_tokens: TOKENS });
  const outcomes = await runCrowd({ url: server.url, clients: CLIENTS, bodyOf, key: 'key' });
  outcomes.forEach(expectOutcome);
  expect(outcomes.filter(({ kind }) => kind === 'good')).toHaveLength(CLIENTS * 0.7);
  await until(() => engine.active === 0);
  expect(engine.stats().blocksUsed).toBe(0);
  expect(server.admission.inside).toBe(0);
  expect(server.lives.size).toBe(0);
  expect((await ask(`${server.url}/health`)).status).toBe(200);
  await server.stop();
  await until(() => server.openConnections === 0);
});
