// Models with rotary angles that depend on the length: a batch changes no result.
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { evaluation, nn, seed } from '../../lib/index.js';
import { logProbabilities, TOKENIZER } from './models.js';

const dir = mkdtempSync(join(tmpdir(), 'ds-long-rope-'));
afterAll(() => rmSync(dir, { recursive: true }));

function model(): nn.models.CausalLM {
  seed(5);
  const sizes = { layers: 1, heads: 2, kvHeads: 1, channels: 16, hidden: 32, maxSeq: 32 };
  const ropeScaling: nn.models.LongRopeScaling = {
    type: 'longrope',
    factor: 4,
    originalMaxSeq: 6,
    shortFactor: [1, 1, 1, 1],
    longFactor: [2, 3, 5, 8],
  };
  return new nn.models.Llama({ vocabSize: 1007, ...sizes, ropeScaling, initializerRange: 0.5 });
}

test('short rows keep their angles next to long rows', async () => {
  const one = model();
  const texts = ['A rank', 'Gradients are summed over all ranks, and divided.', 'B'];
  const pairs = texts.map((text): [string, string] => ['The', ` ${text}`]);
  const options = { tokenizer: TOKENIZER };
  const alone = await evaluation.logLikelihoods(one, pairs, { ...options, batchSize: 1 });
  const together = await evaluation.logLikelihoods(one, pairs, { ...options, batchSize: 8 });
  alone.forEach(({ logLikelihood }, i) => {
    expect(together[i]?.logLikelihood).toBeCloseTo(logLikelihood, 5);
  });

  const files = join(dir, 'rows.jsonl');
  writeFileSync(files, texts.map((text) => JSON.stringify({ text })).join('\n'));
  const rows = { ...options, files, length: 32, threads: 0 };
  const [first, second] = [
    await evaluation.evaluate(one, { ...rows, batchSize: 1 }),
    await evaluation.evaluate(one, { ...rows, batchSize: 8 }),
  ];
  expect(first.tokens).toBe(second.tokens);
  expect(second.loss).toBeCloseTo(first.loss, 5);
  // The length decides: the same tokens have other log-probabilities in a longer sequence.
  const [short, long] = [6, 8].map((length) =>
    logProbabilities(one, [...Array(length).keys()])[3]?.slice(0, 4),
  );
  expect(short).not.toEqual(long);
});
