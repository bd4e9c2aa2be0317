// Tests speculation: tokens, logprobs and distributions equal those without it, for sequences of
// different acceptance, limits and preemptions.
import assert from 'node:assert/strict';
import {
  type GenerateRequest,
  type Generation,
  type InferenceConfig,
  type InferenceStats,
  initInference,
} from '../../lib/inference/index.js';
import { Sampler } from '../../lib/inference/sampling.js';
import { type CausalLM, Llama } from '../../lib/models/index.js';
import type { Device } from '../../lib/runtime/device.js';
import { supportsGraphs } from '../../lib/runtime/graph.js';
import { scope, seed, Tensor } from '../../lib/tensor/index.js';
import type { Case } from '../support/case.js';

const VOCABULARY = 41;

function tiny(): CausalLM {
  seed(5);
  return new Llama({
    vocabSize: VOCABULARY,
    maxSeq: 128,
    layers: 2,
    heads: 4,
    channels: 32,
    kvHeads: 2,
    hidden: 48,
    ropeTheta: 1e4,
    eps: 1e-5,
  });
}

const repeatTokens = (n: number, count: number): number[] =>
  Array.from({ length: count }, (_, i) => (7 * (i % (3 + n)) + n) % VOCABULARY);

/** Sequences that accept all proposals, some, and none. */
const requests: GenerateRequest[] = Array.from({ length: 12 }, (_, n) => {
  const rules: Omit<GenerateRequest, 'prompt'>[] = [
    { temperature: 0 },
    { temperature: 0.2, seed: n, logprobs: 2 },
    { seed: n, allowedTokens: [1, 2], logprobs: 0 },
    { temperature: 0, minTokens: 9, stopTokens: [3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37] },
    { temperature: 0.3, seed: n, badWords: [[3], [4, 5], [1, 2, 3]], n: 2 },
    // Penalties exclude proposals.
    { temperature: 0, repetitionPenalty: 1.2, maxNewTokens: 9 },
  ];
  return { prompt: repeatTokens(n % 5, 9 + n), maxNewTokens: 45, ...rules[n % rules.length] };
});

interface Run {
  readonly found: Generation[];
  readonly stats: InferenceStats;
}

async function run(
  device: Device,
  config: InferenceConfig,
  generateRequests = requests,
): Promise<Run> {
  const model = tiny();
  const engine = await initInference(model, {
    device: device.name,
    dtype: 'fp32',
    kv_cache: { block_size: 16 },
    ...config,
  });
  const found = (await engine.generateBatch(generateRequests)).flat();
  const stats = engine.stats();
  assert.deepEqual([stats.running, stats.waiting, stats.blocksUsed], [0, 0, 0]);
  await engine.destroy();
  for (const parameter of model.parameters()) parameter.dispose();
  return { found, stats };
}

function alike(run: Run, expected: Run): void {
  const plain = ({ found }: Run): object[] =>
    found.map(({ tokens, finishReason, promptTokens, logprobs }) => ({
      tokens,
      finishReason,
      promptTokens,
      own: logprobs?.map(({ token, top }) => [token, top.map((item) => item.token)]),
    }));
  assert.deepEqual(plain(run), plain(expected));
  const numbers = ({ found }: Run): number[] =>
    found.flatMap(({ logprobs }) => logprobs?.map(({ logprob }) => logprob) ?? []);
  const expectedValues = numbers(expected);
  for (const [i, value] of numbers(run).entries()) {
    assert.ok(Math.abs(value - (expectedValues[i] as number)) < 1e-4, `logprob ${i} is ${value}`);
  }
  assert.equal(run.stats.generatedTokens, expected.stats.generatedTokens);
}

const small = { block_size: 16, blocks: 8 };
const speculative = { prompt_lookup_min: 1 };

async function equalTexts(device: Device): Promise<void> {
  const expected = await run(device, {});
  const input = await run(device, { speculative });
  alike(input, expected);
  const { proposedTokens, acceptedTokens } = input.stats;
  assert.ok(acceptedTokens > 30 && acceptedTokens < proposedTokens, String(acceptedTokens));
  const alone = await run(device, { speculative }, requests.slice(0, 1));
  assert.deepEqual(alone.found, expected.found.slice(0, 1));
  assert.ok(alone.stats.steps < 30, `${alone.stats.steps} steps`);
  assert.deepEqual([expected.stats.proposedTokens, expected.stats.acceptedTokens], [0, 0]);
}

async function checkPreempted(device: Device): Promise<void> {
  const expected = await run(device, { kv_cache: small });
  const input = await run(device, { kv_cache: small, speculative, max_ragged_batch_size: 20 });
  alike(input, expected);
  assert.ok(input.stats.preemptions > 0 && input.stats.acceptedTokens > 0);
}

async function underLoad(device: Device): Promise<void> {
  const input = await run(device, { speculative: { ...speculative, disable_by_batch_size: 1 } });
  alike(input, await run(device, {}));
  // Only the last sequence runs alone.
  const { proposedTokens, generatedTokens } = input.stats;
  assert.ok(proposedTokens < generatedTokens / 8, `${proposedTokens} of ${generatedTokens}`);
}

/** A sequence alone runs in recorded steps, also while it verifies proposals. */
async function recorded(device: Device): Promise<void> {
  for (const request of requests.slice(0, 4)) {
    const input = await run(device, { speculative, enable_cuda_graph: true }, [request]);
    alike(input, await run(device, {}, [request]));
  }
}

/** Scores of three tokens after each token. */
const AFTER = [
  [0.2, 1.1, -0.4],
  [1.5, -0.3, 0.1],
  [-0.6, 0.4, 0.9],
];

/** Draws two tokens with `proposal` for the first one. Row 1 counts only if row 0 equals it. */
function twoTokens(sampler: Sampler, localValue: number, proposal: number): number[] {
  const { device } = sampler;
  const scores = (...rows: number[][]): Tensor =>
    Tensor.from(Float32Array.from(rows.flat()), { shape: [rows.length, 3], device });
  sampler.enter(0, [0], { seed: localValue });
  sampler.follow(0, [0], 1, [proposal]);
  const rows = scores(AFTER[0] as number[], AFTER[proposal] as number[]);
  const [first, second] = sampler.sample(rows, [0, 0], null, [0, 1]).tokens.toArray() as number[];
  const drawn = [first as number, second as number];
  if (first !== proposal) {
    sampler.follow(0, [0, first as number], 1, []);
    const next = sampler.sample(scores(AFTER[first as number] as number[]), [0]).tokens.toArray();
    drawn[1] = next[0] as number;
  }
  sampler.leave(0);
  return drawn;
}

/** Pairs of tokens have their probabilities for each proposal, by chi-square (8 degrees). */
function distributions(device: Device): void {
  const sampler = new Sampler(3, device, 1, {}, 2);
  const softmax = (x: number[]): number[] => {
    const all = x.map(Math.exp);
    return all.map((value) => value / all.reduce((a, b) => a + b));
  };
  const draws = 3000;
  for (const proposal of [0, 1, 2]) {
    const counts = new Array<number>(9).fill(0);
    for (let localValue = 0; localValue < draws; ++localValue) {
      const [a, b] = scope(() => twoTokens(sampler, localValue, proposal)) as [number, number];
      counts[3 * a + b]! += 1;
    }
    const [first, ...rows] = [AFTER[0] as number[], ...AFTER].map(softmax);
    const chances = counts.map(
      (_, i) => (first?.[Math.floor(i / 3)] as number) * (rows[Math.floor(i / 3)]?.[i % 3] ?? 0),
    );
    const distance = counts.reduce((sum, count, i) => {
      const expected = draws * (chances[i] as number);
      return sum + (count - expected) ** 2 / expected;
    }, 0);
    assert.ok(distance < 26.1, `proposal ${proposal}: chi-square ${distance}`);
  }
  sampler.dispose();
}

export const cases: Case[] = [
  { name: 'speculation: tokens and logprobs are the same, in fewer steps', run: equalTexts },
  { name: 'speculation: with preemptions and a small budget', run: checkPreempted },
  { name: 'speculation stops above disable_by_batch_size', run: underLoad },
  {
    name: 'speculation: recorded steps of one sequence',
    run: recorded,
    skip: (device) => (supportsGraphs(device) ? null : 'it records no work'),
  },
  { name: 'speculation: draws have the probabilities of the scores', run: distributions },
];
