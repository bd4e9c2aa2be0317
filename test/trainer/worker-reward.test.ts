// rewards.worker(): functions of modules on threads; errors, hangs and missing exports.
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { rewards } from '../../lib/index.js';
import { judgedOf } from '../../lib/trainer/rollouts/generation.js';
import { readRewards, rewardsOf } from '../../lib/trainer/rollouts/reward.js';
import { errorOf } from '../engine/offload-scenario.js';

const dir = mkdtempSync(join(tmpdir(), 'ds-worker-reward-'));
afterAll(() => rmSync(dir, { recursive: true }));
const file = join(dir, 'rewards.mjs');
writeFileSync(
  file,
  `export const length = async ({ completions, columns, prompts, step }) =>
  completions.map(({ content, tokens }, i) =>
    content === 'null' ? null : content.length + tokens.length + columns.more[i] + prompts[i].length + step);
export const faulty = ({ completions }) => {
  if (completions.some(({ content }) => content === 'three')) throw new Error('no judge');
  return completions.map(() => 1);
};
export const hangs = ({ completions }) => {
  if (completions.some(({ content }) => content === 'three')) for (;;);
  return completions.map(() => 1);
};
export const text = 'no function';
`,
);

const judgeSamples = () => {
  const samples = [1, 2].map((index) => ({
    index,
    prompt: 'p'.repeat(index),
    promptIds: Int32Array.of(1),
    columns: { more: 10 * index },
    location: `rows.jsonl:${index}`,
  }));
  const completions = ['one', 'null', 'three', 'four'].map((content) => ({
    content,
    tokens: [1, 2],
    isTruncated: false,
  }));
  return judgedOf(samples, completions, { count: 2, step: 5 });
};
const of = (name: string, options: object = {}) =>
  readRewards('rewards', { of: rewards.worker(`${file}#${name}`, options), name });

test.each([1, 3, 8])('functions run on %d threads', async (threads) => {
  const found = await rewardsOf(of('length', { threads }), judgeSamples());
  expect(found).toEqual([[21], [null], [34], [33]]);
});

test('an error and a loop without await name the row', async () => {
  expect(await errorOf(() => rewardsOf(of('faulty'), judgeSamples()))).toMatch(
    /^DS_DATA reward faulty of rows.jsonl:2: expected a reward, got the error "no judge"/,
  );
  expect(await errorOf(() => rewardsOf(of('hangs', { timeout: 1 }), judgeSamples()))).toMatch(
    /^DS_DATA reward hangs of rows.jsonl:2: expected a reward, got the error "no answer for 1000 ms"/,
  );
});

test('missing modules and exports, and wrong options are refused', async () => {
  const missing = readRewards('rewards', rewards.worker(join(dir, 'none.mjs')));
  expect(await errorOf(() => rewardsOf(missing, judgeSamples()))).toMatch(
    /^DS_ARGUMENT rewards.worker .*a module that can be imported/,
  );
  expect(await errorOf(() => rewardsOf(of('text'), judgeSamples()))).toMatch(
    /^DS_ARGUMENT .*an exported function "text", got faulty, hangs, length, text/,
  );
  expect(() => rewards.worker(file, { threads: 0 })).toThrow(/rewards.worker threads/);
  expect(() => rewards.worker(5 as never)).toThrow(/rewards.worker file/);
  expect(rewards.worker(`${file}#length`).name).toBe('length');
});
