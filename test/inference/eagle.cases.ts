// Tests speculation by an EAGLE-3 head: texts are the same with a perfect and a random head.
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { InferenceConfig, InferenceStats } from '../../lib/inference/index.js';
import { Llama } from '../../lib/models/index.js';
import type { Device } from '../../lib/runtime/device.js';
import { supportsGraphs } from '../../lib/runtime/graph.js';
import { liveTensors, seed } from '../../lib/tensor/index.js';
import type { Case } from '../support/case.js';
import { requestsOf, run } from './draft-runs.js';
import {
  type HeadOptions,
  lastTokenModel,
  perfectWeights,
  SIZES,
  WIDE,
  writeHead,
} from './eagle-folder.js';

const requests = requestsOf(SIZES.vocabSize);

function randomModel(): Llama {
  seed(11);
  return new Llama({ ...WIDE, maxSeq: 160 });
}

/** A head for lastTokenModel() that predicts all tokens, or every second one. */
function perfectHead(half = false): HeadOptions {
  const model = lastTokenModel();
  const all = Array.from({ length: SIZES.vocabSize }, (_, i) => i);
  const targets = half ? all.filter((token) => token % 2 === 0) : null;
  const valuesOf = perfectWeights(model, targets);
  return { kvHeads: 4, targets, valuesOf, config: { norm_before_residual: true } };
}

async function same(
  device: Device,
  { model, head }: { model: () => Llama; head: HeadOptions },
  config: InferenceConfig,
  check: (acceptance: number, stats: InferenceStats) => void,
  maxSequences = 32,
): Promise<void> {
  const dir = mkdtempSync(join(tmpdir(), 'ds-eagle-'));
  try {
    await writeHead(dir, head);
    const expected = await run(device, model(), config, requests);
    const before = liveTensors();
    const method = 'eagle3' as const;
    const sizes = { num_speculative_tokens: 4, disable_by_batch_size: maxSequences };
    const speculative = { method, model: dir, ...sizes };
    const { found, stats } = await run(device, model(), { ...config, speculative }, requests);
    assert.deepEqual(
      found.map(({ tokens, finishReason }) => ({ tokens, finishReason })),
      expected.found.map(({ tokens, finishReason }) => ({ tokens, finishReason })),
    );
    assert.ok(liveTensors() <= before, `${liveTensors() - before} tensors are left`);
    check(stats.acceptedTokens / stats.proposedTokens, stats);
  } finally {
    rmSync(dir, { recursive: true });
  }
}

const perfect = { model: lastTokenModel, head: perfectHead() };

export const cases: Case[] = [
  {
    name: 'eagle: a head with the scores of the model is accepted always, also in samples',
    run: (device) => same(device, perfect, {}, (rate) => assert.ok(rate > 0.97, String(rate))),
  },
  {
    name: 'eagle: a head that predicts half of the tokens',
    run: (device) =>
      same(device, { ...perfect, head: perfectHead(true) }, {}, (rate) => {
        assert.ok(rate > 0.1 && rate < 0.9, String(rate));
      }),
  },
  {
    name: 'eagle: a random head',
    run: (device) =>
      same(device, { model: randomModel, head: {} }, {}, (rate) => {
        assert.ok(rate < 0.6, String(rate));
      }),
  },
  {
    name: 'eagle: a random head with tables of tokens',
    run: (device) =>
      same(device, { model: randomModel, head: { targets: [1, 4, 5, 9, 30] } }, {}, (rate) => {
        assert.ok(rate < 0.6, String(rate));
      }),
  },
  {
    name: 'eagle: a head of shorter sequences',
    run: (device) =>
      same(
        device,
        { ...perfect, head: { ...perfectHead(), config: shorter } },
        {},
        (rate, { proposedTokens }) => {
          assert.ok(rate > 0.9 && proposedTokens > 100, `${rate} ${proposedTokens}`);
        },
      ),
  },
  {
    name: 'eagle: speculation stops under load and starts again after it',
    run: (device) =>
      same(
        device,
        perfect,
        { max_ragged_sequence_count: 8 },
        (rate, { proposedTokens, steps }) => {
          assert.ok(rate > 0.97 && proposedTokens > 50 && steps > 60, `${rate} ${proposedTokens}`);
        },
        3,
      ),
  },
  {
    name: 'eagle: with preemptions',
    run: (device) =>
      same(device, perfect, { kv_cache: { block_size: 16, blocks: 14 } }, (rate, stats) => {
        assert.ok(stats.preemptions > 0 && rate > 0.9, `${stats.preemptions} ${rate}`);
      }),
  },
  {
    name: 'eagle: recorded steps of one sequence',
    run: (device) =>
      same(device, perfect, { enable_cuda_graph: true }, (rate) => assert.ok(rate > 0.97)),
    skip: (device) => (supportsGraphs(device) ? null : 'it records no work'),
  },
  {
    name: 'eagle: with asynchronous scheduling',
    run: (device) =>
      same(device, perfect, { async_scheduling: true }, (rate) => assert.ok(rate > 0.97)),
  },
];

const shorter = { norm_before_residual: true, max_position_embeddings: 40 };
