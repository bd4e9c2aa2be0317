// Many clients at once: every good request is answered in full, every bad one with its error, and
// nothing is left.
import { copyFileSync, mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fromConfig } from '../../lib/models/index.js';
import { packageRoot } from '../../lib/runtime/package-root.js';
import { openEngine, type ServedEngine, serve } from '../../lib/serve/index.js';
import { seed } from '../../lib/tensor/index.js';
import { ask, eventsOf, until } from './client.js';
import { type Outcome, runCrowd, statusOf } from './crowd.js';
import { FakeEngine, textOf, tokenizer } from './fake-engine.js';

/** 500 by hand: `DS_TEST_CLIENTS=500 npx jest test/serve/crowd`. */
const CLIENTS = Number(process.env.DS_TEST_CLIENTS ?? 100);
const TOKENS = 24;
const TOKENIZER = join(packageRoot(), 'examples', 'tokenizer');
/** Number of different prompts. */
const PROMPTS = 20;

const promptOf = (i: number) => [1 + (i % PROMPTS), 2, ...Array(i % PROMPTS).fill(3)];

/** The text of a whole answer, or of a stream. */
function saidBy(text: string): string {
  if (!text.startsWith('data: ')) return JSON.parse(text).choices[0].text;
  const { events, isDone } = eventsOf(text);
  return isDone ? events.map(({ choices }) => choices[0].text).join('') : 'cut off';
}

function expectOutcome({ kind, status, text }: Outcome, i: number, expected: string): void {
  if (kind === 'gone') return;
  if (kind === 'nonsense') {
    expect({ i, status }).toEqual({ i, status: statusOf(i) });
    expect(JSON.parse(text).error.message).not.toBe('');
    return;
  }
  expect({ i, kind, status, said: saidBy(text) }).toEqual({ i, kind, status: 200, said: expected });
}

async function expectCrowdServed(engine: ServedEngine, expected: readonly string[]): Promise<void> {
  const server = await serve(engine, { port: 0, apiKeys: ['key'] });
  const bodyOf = (i: number) => ({
    prompt: promptOf(i),
    max_tokens: TOKENS,
    temperature: 0,
    ignore_eos: true,
  });
  const outcomes = await runCrowd({ url: server.url, clients: CLIENTS, bodyOf, key: 'key' });
  for (const [i, one] of outcomes.entries()) expectOutcome(one, i, expected[i % PROMPTS] as string);
  expect(outcomes.filter(({ kind }) => kind === 'good')).toHaveLength(CLIENTS * 0.7);
  await until(() => engine.stats().running + engine.stats().waiting === 0);
  expect(engine.stats().blocksUsed).toBe(0);
  expect(server.admission.running).toBe(0);
  expect(server.lives.size).toBe(0);
  expect((await ask(`${server.url}/health`)).status).toBe(200);
  await server.stop();
  await until(() => server.openConnections === 0);
}

test(`${CLIENTS} clients at an engine by arithmetic`, () => {
  const expected = Array.from({ length: PROMPTS }, (_, i) => textOf(promptOf(i), 0, TOKENS));
  return expectCrowdServed(new FakeEngine(tokenizer), expected);
});

test(`${CLIENTS} clients at a model`, async () => {
  seed(10); // No two tokens are nearly as likely anywhere: another batch has other last bits.
  const model = fromConfig({
    model_type: 'llama',
    vocab_size: 1007,
    hidden_size: 32,
    intermediate_size: 48,
    num_hidden_layers: 2,
    num_attention_heads: 4,
    num_key_value_heads: 2,
    max_position_embeddings: 128,
    rms_norm_eps: 1e-6,
    rope_theta: 500,
    hidden_act: 'silu',
  });
  const folder = mkdtempSync(join(tmpdir(), 'ds-crowd-'));
  await model.save(join(folder, 'model'));
  for (const name of readdirSync(TOKENIZER)) {
    copyFileSync(join(TOKENIZER, name), join(folder, 'model', name));
  }
  const engine = await openEngine(join(folder, 'model'), { config: { device: 'cpu' } });
  try {
    const greedy = { maxNewTokens: TOKENS, temperature: 0, ignoreEos: true };
    const requests = Array.from({ length: PROMPTS }, (_, i) => ({
      prompt: promptOf(i),
      ...greedy,
    }));
    const generations = await engine.generateBatch(requests);
    await expectCrowdServed(
      engine,
      generations.map(([one]) => one?.text ?? ''),
    );
  } finally {
    await engine.destroy();
    rmSync(folder, { recursive: true });
  }
});
