// Tests speculation by a draft model: texts are the same with a perfect, a poor and a smaller
// draft.
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import {
  type GenerateRequest,
  type Generation,
  type InferenceConfig,
  type InferenceStats,
  initInference,
} from '../../lib/inference/index.js';
import { Llama } from '../../lib/models/index.js';
import type { Device } from '../../lib/runtime/device.js';
import { liveTensors, noGrad, seed } from '../../lib/tensor/index.js';
import type { Case } from '../support/case.js';

const sizes = { vocabSize: 61, maxSeq: 160, layers: 6, heads: 4, channels: 32, kvHeads: 2 };

function llama(own: number, given: { layers?: number; maxSeq?: number; vocabSize?: number } = {}) {
  seed(own);
  return new Llama({ ...sizes, hidden: 48, ropeTheta: 1e4, eps: 1e-5, ...given });
}

/** A model of 6 layers, of which only the first one changes the hidden states. */
function target(): Llama {
  const model = llama(3);
  for (const [name, value] of Object.entries(model.stateDict())) {
    if (/layers\.[1-5]\..*(o_proj|down_proj)/.test(name)) noGrad(() => value.fill_(0));
  }
  return model;
}

/** The first layer of the target: the same scores for a fifth of the time. */
function perfect(): Llama {
  const [model, draft] = [target(), llama(3, { layers: 1 })];
  draft.loadStateDict(model.stateDict(), { strict: false });
  for (const parameter of model.parameters()) parameter.dispose();
  return draft;
}

const requests: GenerateRequest[] = Array.from({ length: 9 }, (_, n) => {
  const rules: Omit<GenerateRequest, 'prompt'>[] = [
    { temperature: 0 },
    { seed: n, logprobs: 1 },
    { seed: n, topP: 0.7, temperature: 1.4, badWords: [[3], [4, 5]], n: 2 },
    { seed: n, repetitionPenalty: 1.3 },
  ];
  const prompt = Array.from({ length: 5 + 9 * n }, (_, i) => (i * i + n) % 61);
  return { prompt, maxNewTokens: 20 + n, ...rules[n % rules.length] };
});

interface Run {
  readonly found: Generation[];
  readonly stats: InferenceStats;
}

async function run(device: Device, config: InferenceConfig): Promise<Run> {
  const model = target();
  const engine = await initInference(model, {
    ...{ device: device.name, dtype: 'fp32', max_ragged_batch_size: 48 },
    kv_cache: { block_size: 16 },
    ...config,
  });
  const found = (await engine.generateBatch(requests)).flat();
  const again = (await Promise.all(requests.map((request) => engine.generate(request)))).flat();
  assert.deepEqual(
    again.map(({ tokens }) => tokens),
    found.map(({ tokens }) => tokens),
  );
  const stats = engine.stats();
  assert.deepEqual([stats.running, stats.waiting, stats.blocksUsed], [0, 0, 0]);
  await engine.destroy();
  for (const parameter of model.parameters()) parameter.dispose();
  model.releaseTables();
  return { found, stats };
}

/** Calls `body` with the folder of a draft model. */
async function withDraft(draft: Llama, body: (model: string) => Promise<void>): Promise<void> {
  const dir = mkdtempSync(join(tmpdir(), 'ds-draft-'));
  try {
    await draft.save(dir);
    for (const parameter of draft.parameters()) parameter.dispose();
    await body(dir);
  } finally {
    rmSync(dir, { recursive: true });
  }
}

async function same(
  device: Device,
  draft: Llama,
  config: InferenceConfig,
  check: (acceptance: number, stats: InferenceStats) => void,
): Promise<void> {
  await withDraft(draft, async (model) => {
    const expected = await run(device, config);
    const before = liveTensors();
    const speculative = { model, num_speculative_tokens: 4 };
    const { found, stats } = await run(device, { ...config, speculative });
    assert.deepEqual(
      found.map(({ tokens, finishReason }) => ({ tokens, finishReason })),
      expected.found.map(({ tokens, finishReason }) => ({ tokens, finishReason })),
    );
    assert.ok(liveTensors() <= before, `${liveTensors() - before} tensors are left`);
    check(stats.acceptedTokens / stats.proposedTokens, stats);
  });
}

export const cases: Case[] = [
  {
    name: 'draft model: the same weights are accepted always, also in samples',
    run: (device) => same(device, perfect(), {}, (rate) => assert.ok(rate > 0.97, String(rate))),
  },
  {
    name: 'draft model: other weights are accepted less often',
    run: (device) =>
      same(device, llama(4, { layers: 1 }), {}, (rate) => assert.ok(rate < 0.8, String(rate))),
  },
  {
    name: 'draft model: of shorter sequences',
    run: (device) =>
      same(device, llama(4, { layers: 1, maxSeq: 60 }), {}, (rate) => assert.ok(rate > 0)),
  },
  {
    name: 'draft model: with preemptions',
    run: (device) =>
      same(device, perfect(), { kv_cache: { block_size: 16, blocks: 14 } }, (rate, stats) => {
        assert.ok(stats.preemptions > 0 && rate > 0.9, `${stats.preemptions} ${rate}`);
      }),
  },
  {
    name: 'draft model: ahead of the host',
    run: (device) =>
      same(device, perfect(), { async_scheduling: true }, (rate) => assert.ok(rate > 0.97)),
  },
  {
    name: 'draft model: another vocabulary is refused',
    run: (device) =>
      withDraft(llama(3, { vocabSize: 64 }), async (model) => {
        await assert.rejects(
          run(device, { speculative: { model } }),
          /speculative.model: expected the tokenizer of the model: a vocabulary of 61 tokens, got 64/,
        );
      }),
  },
];
