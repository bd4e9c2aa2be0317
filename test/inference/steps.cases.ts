// Tests steps that launch before the host has the last tokens, and recorded steps: texts and scores
// equal step-by-step runs.
import assert from 'node:assert/strict';
import {
  type GenerateRequest,
  type Generation,
  type InferenceConfig,
  initInference,
} from '../../lib/inference/index.js';
import { Sequence } from '../../lib/inference/sequence.js';
import type { StepGraphs } from '../../lib/inference/step-graphs.js';
import { StepRunner } from '../../lib/inference/step-runner.js';
import { type CausalLM, GPT2, Llama, Qwen3Moe } from '../../lib/models/index.js';
import type { Device } from '../../lib/runtime/device.js';
import { Graph, supportsGraphs } from '../../lib/runtime/graph.js';
import * as kernels from '../../lib/runtime/kernels.generated.js';
import { required } from '../../lib/runtime/required.js';
import { held, liveTensors, noGrad, scope, Tensor } from '../../lib/tensor/index.js';
import { seed } from '../../lib/tensor/random.js';
import type { Case } from '../support/case.js';
import { quiet } from '../support/quiet.js';

const sizes = { vocabSize: 67, maxSeq: 96, layers: 2, heads: 4, channels: 32 };

function models(): Record<string, CausalLM> {
  seed(11);
  const llama = new Llama({ ...sizes, kvHeads: 2, hidden: 48, ropeTheta: 1e4, eps: 1e-5 });
  // Only the device has the routing of tokens to experts: a recorded step computes it in each
  // replay.
  const mixture = new Qwen3Moe({
    ...sizes,
    kvHeads: 2,
    hidden: 40,
    ropeTheta: 1e4,
    moe: { experts: 6, perToken: 2, hidden: 24, normalize: true },
  });
  return { gpt2: new GPT2(sizes), llama, mixture };
}

/** All features of a step: stops, samples, logprobs, penalties, bans, biases. */
function mixedRequests(): GenerateRequest[] {
  const prompt = (n: number): number[] => Array.from({ length: 3 + 5 * n }, (_, i) => (i * n) % 67);
  const rules: Omit<GenerateRequest, 'prompt'>[] = [
    { temperature: 0, ignoreEos: true },
    { seed: 3, stopTokens: Array.from({ length: 9 }, (_, i) => 7 * i) },
    { seed: 4, topK: 12, n: 3, logprobs: 2 },
    { seed: 5, topP: 0.8, repetitionPenalty: 1.3, stopTokens: [1, 2, 3, 4, 5] },
    { temperature: 0, frequencyPenalty: 0.5, logprobs: 0, badWords: [[4, 5], [9]] },
    { seed: 6, logitBias: { 8: 3 }, minTokens: 4, stopTokens: [8] },
    { seed: 7, maxNewTokens: 1 },
    { seed: 8, allowedTokens: [1, 2, 3], maxNewTokens: 2 },
  ];
  return [...rules, ...rules].map((rule, i) => ({
    prompt: prompt(i % 7),
    maxNewTokens: 17 + i,
    ...rule,
  }));
}

/** Texts of the same requests, all at once and in waves. */
async function texts(
  model: CausalLM,
  device: Device,
  config: InferenceConfig,
): Promise<Generation[][]> {
  const engine = await initInference(model, {
    device: device.name,
    dtype: 'fp32',
    max_ragged_batch_size: 40,
    ...config,
    kv_cache: { block_size: 16, blocks: 30 },
  });
  const fullRows = await engine.generateBatch(mixedRequests());
  const waves = await Promise.all(mixedRequests().map((request) => engine.generate(request)));
  const { running, waiting, blocksUsed, steps } = engine.stats();
  assert.deepEqual([running, waiting, blocksUsed], [0, 0, 0]);
  assert.ok(steps > 0);
  await engine.destroy();
  return [...fullRows, ...waves];
}

/** Logprobs differ in the last bits between batch sizes. */
function alike(rows: Generation[][], expected: Generation[][]): void {
  const plain = (all: Generation[][]): object[] =>
    all.flat().map(({ tokens, text, finishReason, logprobs }) => ({
      tokens,
      text,
      finishReason,
      likely: logprobs?.map(({ top }) => top.length),
    }));
  assert.deepEqual(plain(rows), plain(expected));
  const numbers = (all: Generation[][]): number[] =>
    all.flat().flatMap(({ logprobs }) => logprobs?.map(({ logprob }) => logprob) ?? []);
  const expectedValues = numbers(expected);
  numbers(rows).forEach((value, i) => {
    assert.ok(Math.abs(value - (expectedValues[i] as number)) < 1e-4, `logprob ${i} is ${value}`);
  });
}

async function sameTexts(device: Device, config: InferenceConfig): Promise<void> {
  for (const model of Object.values(models())) {
    const expected = await texts(model, device, { async_scheduling: false });
    assert.ok(expected.some(([one]) => one?.finishReason === 'stop'));
    const before = liveTensors();
    alike(await texts(model, device, config), expected);
    assert.ok(liveTensors() <= before, `${liveTensors() - before} tensors are left`);
    for (const parameter of model.parameters()) parameter.dispose();
  }
}

/**
 * A step has the same bits when it runs directly, is recorded, and is replayed. Some texts are
 * longer than a tile of 64 keys: a recorded step reads older tiles before the kernel in front has
 * ended.
 */
function sameBits(device: Device, dtype: 'f32' | 'bf16', rows: number): void {
  for (const model of Object.values(models())) {
    model.to(device, dtype).eval();
    const cache = { ...model.cacheShape(), blockSize: 16 };
    const room = { blocks: 6 * rows, tokens: 96, sequences: rows, reach: 96, records: true };
    const runner = new StepRunner(model, cache, room);
    const sequences = Array.from({ length: rows }, (_, s) => {
      const tokens = Array.from({ length: 90 - ((37 * s) % 88) }, (_, i) => (3 * i + s) % 67);
      const sequence = new Sequence(tokens, 96);
      sequence.blocks = Array.from({ length: 6 }, (_, i) => 6 * s + i);
      return sequence;
    });
    const scores: number[][] = [];
    const keep = (found: Tensor, _: unknown, tokens: Tensor) => {
      scores.push(found.toArray());
      return { tokens, logprobs: null, top: null, requestedTop: [] };
    };
    const ones = (first: number) => sequences.map((sequence) => ({ sequence, first, count: 1 }));
    const known = sequences.map(({ tokens }) => tokens.length);
    sequences.forEach((sequence, s) => {
      const count = (known[s] as number) - 1;
      runner.launch([{ sequence, first: 0, count }], keep);
    });
    assert.equal(scores.length, 0);
    for (let turn = 0; turn < 3; ++turn) {
      for (const sequence of sequences) sequence.forget();
      const slices = ones(0).map((slice, s) => ({ ...slice, first: (known[s] as number) - 1 }));
      runner.launch(slices, (found, all, into) => {
        into.fill_(0);
        return keep(found, all, into);
      });
    }
    device.synchronize();
    assert.ok((scores[0] as number[]).every(Number.isFinite));
    assert.deepEqual(scores[1], scores[0]);
    assert.deepEqual(scores[2], scores[0]);
    const { graphs } = runner as unknown as { graphs: StepGraphs };
    assert.equal(graphs.count, 1, 'it was recorded');
    runner.dispose();
    for (const parameter of model.parameters()) parameter.dispose();
  }
}

/**
 * Ahead of the host, each step has a token of every sequence that decodes, also if their prompts
 * took several steps. Prompts of 8 tokens in steps of 40 begin in three of them.
 */
async function fullSteps(device: Device): Promise<void> {
  const model = required(models().llama);
  const engine = await initInference(model, {
    device: device.name,
    dtype: 'fp32',
    max_ragged_batch_size: 40,
    async_scheduling: true,
    kv_cache: { block_size: 16, blocks: 64 },
  });
  const maxNewTokens = 24;
  const requests = Array.from({ length: 12 }, (_, i) => ({
    prompt: Array.from({ length: 8 }, (_, at) => (at * 7 + i) % 67),
    maxNewTokens,
    ignoreEos: true,
    temperature: i % 2,
  }));
  await engine.generateBatch(requests);
  assert.equal(engine.stats().steps, maxNewTokens + 2);
  await engine.destroy();
  for (const parameter of model.parameters()) parameter.dispose();
}

/** MB that the driver reserves at a time; two blocks may share one reservation. */
const CHUNK = 32;

/**
 * Each of two records has memory of its own; dropping the first one frees the memory that only it
 * used.
 */
async function givesMemoryBack(device: Device): Promise<void> {
  const MB = 2 ** 18;
  await quiet();
  const out = held(() => Tensor.empty([4 * MB], 'f32', device));
  const recordGraph = (...sizes: number[]): Graph => {
    const body = (): void =>
      scope(() => {
        for (const size of sizes) {
          const part = Tensor.empty([size * MB], 'f32', device).fill_(size);
          kernels.copy({ in: part.narrow(0, 0, 4 * MB), out });
        }
      });
    return noGrad(() => Graph.record(device, body, () => {}));
  };
  const reservedMegabytes = (): number => {
    device.synchronize();
    device.trim();
    return device.memory.reserved / (4 * MB);
  };
  // Earlier cases may have left reservations that are partly in use: parts of records would fit.
  const fillers: Tensor[] = [];
  for (let size = reservedMegabytes(); size === reservedMegabytes(); ) {
    fillers.push(held(() => Tensor.empty([CHUNK * MB], 'f32', device)));
  }
  fillers.pop()?.dispose();
  const before = reservedMegabytes();
  const [first, second] = [recordGraph(64, 128), recordGraph(64, 32)];
  const both = reservedMegabytes() - before;
  assert.ok(both >= 224 - CHUNK, `${both} MB of two records`);
  first.dispose();
  const one = reservedMegabytes() - before;
  const reported = `${one} MB of one record, ${both} of two`;
  assert.ok(one >= 96 - CHUNK && one <= both - 128 + 2 * CHUNK, reported);
  out.fill_(0);
  second.launch();
  assert.deepEqual(out.narrow(0, 0, 2).toArray(), [32, 32]);
  second.dispose();
  assert.ok(reservedMegabytes() - before <= CHUNK, 'none is left');
  for (const tensor of [out, ...fillers]) tensor.dispose();
}

const needsGraphs = (device: Device): string | null =>
  supportsGraphs(device) ? null : 'it records no work';

export const cases: Case[] = [
  {
    name: 'steps: asynchronous scheduling gives the same texts',
    run: (device) => sameTexts(device, { async_scheduling: true }),
  },
  { name: 'steps: with asynchronous scheduling, each step has all sequences', run: fullSteps },
  ...[true, false].map((ahead) => ({
    name: `steps: recorded${ahead ? ' and ahead of the host' : ''}, texts are the same`,
    run: (device: Device) =>
      sameTexts(device, { async_scheduling: ahead, enable_cuda_graph: true }),
    skip: needsGraphs,
  })),
  ...[1, 3, 7].flatMap((maxSteps) =>
    [true, false].map((ahead) => ({
      name: `steps: with ${maxSteps} proposals${ahead ? ', ahead of the host' : ''}, texts are the same`,
      run: (device: Device) =>
        sameTexts(device, {
          async_scheduling: ahead,
          speculative: { num_speculative_tokens: maxSteps, prompt_lookup_min: 1 },
        }),
    })),
  ),
  {
    name: 'steps: a dropped graph frees memory that no other graph uses',
    run: givesMemoryBack,
    skip: needsGraphs,
  },
  ...(['f32', 'bf16'] as const).flatMap((dtype) =>
    [1, 3, 11, 300].map((rows) => ({
      name: `steps: ${rows} in ${dtype}, recorded, have the same bits`,
      run: (device: Device) => sameBits(device, dtype, rows),
      skip: needsGraphs,
    })),
  ),
];
