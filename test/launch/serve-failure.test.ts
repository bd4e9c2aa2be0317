// A rank of `ds serve --tp 2` stalls or dies: the error, /health and the exit code name it.
import { copyFileSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { fromConfig } from '../../lib/models/index.js';
import { packageRoot } from '../../lib/runtime/package-root.js';
import { DS, Run } from './jobs.js';

const TOKENIZER = join(packageRoot(), 'examples', 'tokenizer');
const folder = mkdtempSync(join(tmpdir(), 'ds-serve-failure-'));
const model = join(folder, 'tiny');
afterAll(() => rmSync(folder, { recursive: true }));

beforeAll(async () => {
  const result = fromConfig({
    model_type: 'llama',
    vocab_size: 1007,
    hidden_size: 32,
    intermediate_size: 48,
    num_hidden_layers: 1,
    num_attention_heads: 4,
    num_key_value_heads: 2,
    max_position_embeddings: 512,
    rms_norm_eps: 1e-6,
    rope_theta: 500,
    hidden_act: 'silu',
  });
  await result.save(model);
  for (const name of readdirSync(TOKENIZER)) copyFileSync(join(TOKENIZER, name), join(model, name));
});

/** A server of two ranks that give each other up after `minutes`. */
async function startServer(minutes: number) {
  const words = ['serve', model, '--device', 'cpu', '--port', '0', '--tp', '2'];
  const environment = { DEEPSPEED_TIMEOUT: String(minutes) };
  const run = new Run([...DS, ...words, '--drain-timeout', '1'], folder, environment);
  await run.whenPrinted('ready: ');
  const [, url = ''] = /at (http:\S+)\/v1/.exec(run.stdout) ?? [];
  const second = run.processes().find((pid) => isRank(pid, 1)) as number;
  return { run, url, second };
}

const isRank = (pid: number, rank: number): boolean =>
  readFileSync(`/proc/${pid}/environ`, 'utf8').split('\0').includes(`RANK=${rank}`);

async function ask(url: string) {
  const answer = await fetch(`${url}/v1/completions`, {
    method: 'POST',
    body: JSON.stringify({ prompt: 'interface', max_tokens: 4 }),
    headers: { 'content-type': 'application/json' },
  });
  // biome-ignore lint/suspicious/noExplicitAny: tests look at any JSON.
  return { status: answer.status, json: (await answer.json()) as any };
}

test('a frozen rank: the error names it, /health is 503, and the server ends with 3', async () => {
  const { run, url, second } = await startServer(0.25);
  try {
    expect((await ask(url)).status).toBe(200);
    process.kill(second, 'SIGSTOP');
    const { status, json } = await ask(url);
    expect({ status, code: json.error.code }).toEqual({ status: 503, code: 'engine_failed' });
    expect(json.error.message).toMatch(/rank 1/);
    const health = await fetch(`${url}/health`);
    expect(health.status).toBe(503);
    const expected = { status: 'failed', reason: expect.stringContaining('rank 1') };
    expect(await health.json()).toMatchObject(expected);
  } catch (error) {
    process.kill(second, 'SIGKILL');
    throw error;
  }
  // The launcher kills the frozen rank after its grace period, 11 s.
  const { code, stderr } = await run.finished;
  expect(stderr).toMatch(/ds serve: .*rank 1/);
  expect(code).toBe(3);
  await run.whenGone();
});

test('a killed rank ends the server with the exit code of the rank', async () => {
  const { run, second } = await startServer(1);
  process.kill(second, 'SIGKILL');
  const { code, stderr } = await run.finished;
  expect(stderr).toMatch(/rank 1 failed first: signal SIGKILL/);
  expect(code).toBe(128 + 9);
  await run.whenGone();
});
