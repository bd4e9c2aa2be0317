// Tests adapters in recorded steps, where some of their kernels are a branch of the graph: tokens
// and log-probabilities equal those of direct steps.
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type Generation, initInference } from '../../lib/inference/index.js';
import { Llama } from '../../lib/models/index.js';
import { addLora, saveAdapter } from '../../lib/peft/index.js';
import type { Device } from '../../lib/runtime/device.js';
import { supportsGraphs } from '../../lib/runtime/graph.js';
import { seed } from '../../lib/tensor/random.js';
import type { Case } from '../support/case.js';

/** As many as a recorded step has rows, so that direct steps have the same products. */
const SEQUENCES = 16;

function model(number: number): Llama {
  seed(number);
  return new Llama({
    vocabSize: 96,
    maxSeq: 64,
    layers: 3,
    heads: 4,
    kvHeads: 2,
    channels: 512,
    hidden: 640,
    ropeTheta: 1e4,
    eps: 1e-5,
  });
}

/** Texts of one length, with one of `names` or no adapter each. */
async function texts(
  device: Device,
  adapters: Record<string, string>,
  enable_cuda_graph: boolean,
): Promise<Generation[]> {
  const engine = await initInference(
    model(1),
    { dtype: 'bf16', device: device.name, max_out_tokens: 64, enable_cuda_graph },
    { adapters },
  );
  const names = [...Object.keys(adapters), undefined];
  try {
    const all = await engine.generateBatch(
      Array.from({ length: SEQUENCES }, (_, i) => ({
        prompt: Array.from({ length: 9 }, (_, at) => (7 * i + 5 * at) % 96),
        maxNewTokens: 40,
        ignoreEos: true,
        temperature: 0,
        logprobs: 1,
        ...(names[i % names.length] && { adapter: names[i % names.length]! }),
      })),
    );
    return all.map(([one]) => one as Generation);
  } finally {
    await engine.destroy();
  }
}

async function equal(device: Device): Promise<void> {
  const root = mkdtempSync(join(tmpdir(), 'ds-recorded-adapters-'));
  try {
    const adapters: Record<string, string> = {};
    for (const [i, r] of [16, 5, 64].entries()) {
      const result = model(2 + i);
      addLora(result, { r, loraAlpha: 2 * r, targetModules: 'all-linear', initLoraWeights: false });
      adapters[`a${i}`] = join(root, String(i));
      await saveAdapter(result, join(root, String(i)));
    }
    const direct = await texts(device, adapters, false);
    const recorded = await texts(device, adapters, true);
    const tokens = (all: Generation[]): unknown => all.map((generation) => generation.tokens);
    assert.deepEqual(tokens(recorded), tokens(direct));
    const numbers = (all: Generation[]): number[] =>
      all.flatMap(({ logprobs }) => logprobs?.map(({ logprob }) => logprob) ?? []);
    const expected = numbers(direct);
    assert.equal(expected.length, SEQUENCES * 40);
    numbers(recorded).forEach((value, i) => {
      assert.ok(Math.abs(value - (expected[i] as number)) < 1e-3, `logprob ${i} is ${value}`);
    });
  } finally {
    rmSync(root, { recursive: true, force: true });
  }
}

export const cases: readonly Case[] = [
  {
    name: 'recorded adapters: tokens and logprobs of direct steps',
    run: equal,
    skip: (device: Device) => (supportsGraphs(device) ? null : 'it records no work'),
  },
];
