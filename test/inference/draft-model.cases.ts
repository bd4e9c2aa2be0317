// Tests speculation by a draft model: texts are the same with a perfect, a poor and a smaller
// draft.
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { InferenceConfig, InferenceStats } from '../../lib/inference/index.js';
import { Llama } from '../../lib/models/index.js';
import type { Device } from '../../lib/runtime/device.js';
import { liveTensors, noGrad, seed } from '../../lib/tensor/index.js';
import type { Case } from '../support/case.js';
import { requestsOf, run } from './draft-runs.js';

const sizes = { vocabSize: 61, maxSeq: 160, layers: 6, heads: 4, channels: 32, kvHeads: 2 };

function llama(
  localValue: number,
  options: { layers?: number; maxSeq?: number; vocabSize?: number } = {},
) {
  seed(localValue);
  return new Llama({ ...sizes, hidden: 48, ropeTheta: 1e4, eps: 1e-5, ...options });
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

const requests = requestsOf(sizes.vocabSize);

const runOn = (device: Device, config: InferenceConfig) => run(device, target(), config, requests);

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
    const expected = await runOn(device, config);
    const before = liveTensors();
    const speculative = { model, num_speculative_tokens: 4 };
    const { found, stats } = await runOn(device, { ...config, speculative });
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
    name: 'draft model: with a shorter maximum length',
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
    name: 'draft model: with asynchronous scheduling',
    run: (device) =>
      same(device, perfect(), { async_scheduling: true }, (rate) => assert.ok(rate > 0.97)),
  },
  {
    name: 'draft model: another vocabulary is refused',
    run: (device) =>
      withDraft(llama(3, { vocabSize: 64 }), async (model) => {
        await assert.rejects(
          runOn(device, { speculative: { model } }),
          /speculative.model: expected the tokenizer of the model: a vocabulary of 61 tokens, got 64/,
        );
      }),
  },
];
