// Measures generation with Llama's shapes and random weights: tokens per second, time to the first
// token, and host time per step.
import { type inference, initInference, type nn, seed } from '../lib/index.js';
import { quantizeModel } from '../lib/models/quantize-model.js';
import { Experts, SparseMixture } from '../lib/nn/experts.js';
import type { Module } from '../lib/nn/module.js';
import { Mxfp4Experts } from '../lib/nn/mxfp4-experts.js';
import type { Parameter } from '../lib/nn/parameter.js';
import { replaceModules } from '../lib/nn/replace-modules.js';
import { type Device, device as findDevice } from '../lib/runtime/device.js';
import * as kernels from '../lib/runtime/kernels.generated.js';
import { required } from '../lib/runtime/required.js';
import { held, Tensor } from '../lib/tensor/index.js';
import { hostProfile } from './host-profile.js';
import type { Options } from './main.js';
import { benchModel } from './models.js';
import { median } from './report.js';
import { opsOfStep } from './step-ops.js';

type Engine = inference.InferenceEngine;

/** Times of one run of `batch` texts. */
interface Run {
  /** Milliseconds until the first token of the last text. */
  prefill: number;
  /** Milliseconds per token of every text, and the host's part of them. */
  step: number;
  host: number;
}

const REPEATS = 5;

/** Prompts that differ from each other at every position. */
function prompts(count: number, length: number, vocabulary: number, turn: number): number[][] {
  return Array.from({ length: count }, (_, text) =>
    Array.from({ length }, (_, i) => (text * 7919 + turn * 104_729 + i * 31 + 1) % vocabulary),
  );
}

/** Runs a batch of texts; counts only tokens between the last first token and the first end. */
async function once(
  engine: Engine,
  texts: number[][],
  { count, temperature }: { count: number; temperature: number },
): Promise<Run> {
  const begin = performance.now();
  let started = 0;
  let ended = 0;
  let [from, until] = [begin, begin];
  let [before, after] = [engine.stats(), engine.stats()];
  const read = async (prompt: number[]): Promise<void> => {
    let tokens = 0;
    const request = { prompt, maxNewTokens: count, temperature, ignoreEos: true };
    for await (const _ of engine.stream(request)) {
      if (++tokens === 1 && ++started === texts.length) {
        from = performance.now();
        before = engine.stats();
      }
      if (tokens === count && ++ended === 1) {
        until = performance.now();
        after = engine.stats();
      }
    }
  };
  await Promise.all(texts.map(read));
  const steps = (after.generatedTokens - before.generatedTokens) / texts.length;
  return {
    prefill: from - begin,
    step: (until - from) / steps,
    host: (after.hostMs - before.hostMs) / steps,
  };
}

/** Milliseconds until the first token after a prompt of `length`, without other texts. */
async function firstToken(engine: Engine, length: number, vocabulary: number): Promise<number> {
  const times: number[] = [];
  for (let turn = 0; turn <= REPEATS; ++turn) {
    const [prompt] = prompts(1, length, vocabulary, 1000 + turn) as [number[]];
    const begin = performance.now();
    await engine.generate({ prompt, maxNewTokens: 1, temperature: 0, ignoreEos: true });
    times.push(performance.now() - begin);
  }
  return median(times.slice(1));
}

/** Random bytes in [from, to): the host writes the first ones, and the device repeats them. */
function randomBytes(parameter: Parameter, device: Device, from: number, to: number): void {
  const values = held(() => Tensor.empty(parameter.shape, 'u8', device));
  const count = Math.min(values.numel, 1 << 20);
  const part = Uint8Array.from({ length: count }, (_, i) => {
    const mixed = Math.imul(i ^ (i >>> 7), 2_654_435_761) >>> 8;
    return from + (mixed % (to - from));
  });
  values.buffer.write(0, part);
  for (let done = count; done < values.numel; done *= 2) {
    const next = Math.min(done, values.numel - done);
    const [source, target] = [values.alias([next]), values.alias([next], undefined, done)];
    kernels.copy({ in: source, out: target });
    source.dispose();
    target.dispose();
  }
  parameter.place(values);
  values.release();
}

/** Replaces all experts by ones with random MXFP4 weights on the device. */
function packExperts(model: nn.models.CausalLM, device: Device): void {
  const instead = new Map<Module, Module>();
  for (const module of model.modules()) {
    if (!(module instanceof Experts)) continue;
    const packed = new Mxfp4Experts(module);
    for (const blocks of [packed.gate_up_proj_blocks, packed.down_proj_blocks]) {
      randomBytes(blocks, device, 0, 256);
    }
    for (const scales of [packed.gate_up_proj_scales, packed.down_proj_scales]) {
      randomBytes(scales, device, 117, 123);
    }
    instead.set(module, packed);
  }
  replaceModules(model, instead);
}

/** The share of the experts that a step of `batch` sequences reads, if they choose others. */
function expertShare(model: nn.models.CausalLM, batch: number): number {
  const mixture = [...model.modules()].find((module) => module instanceof SparseMixture);
  if (!mixture) return 1;
  const { k, weight } = mixture.gate;
  return Math.min(1, (batch * k) / required(weight.shape[0]));
}

/**
 * Bytes that a step reads: weights of the linear layers and the head, of the chosen experts, keys
 * and values of all layers.
 */
function bytesRead(model: nn.models.CausalLM, batch: number, context: number): number {
  const { layers, kvHeads, headDim } = model.cacheShape();
  const isTable = (name: string): boolean => name.includes('embed_tokens');
  const tied = !('lm_head.weight' in model.stateDict());
  let weights = 0;
  for (const [name, { buffer, numel, dtype }] of Object.entries(model.stateDict())) {
    if (isTable(name) && !tied) continue;
    const width = { i32: 4, f32: 4, u8: 1 }[dtype as string] ?? 2;
    const share = name.includes('.experts.') ? expertShare(model, batch) : 1;
    if (buffer) weights += numel * width * share;
  }
  return weights + 2 * layers * kvHeads * headDim * 2 * context * batch;
}

function quantize(model: nn.models.CausalLM, options: Options): void {
  if (options.bits === 'e4m3') {
    quantizeModel(model, { bits: 8, format: 'e4m3' });
    return;
  }
  const bits = Number(options.bits ?? 16);
  if (bits === 16) return;
  const head = options.head === undefined ? null : (Number(options.head) as 8 | 4);
  const groupSize = options.group === undefined ? undefined : Number(options.group);
  quantizeModel(model, { bits: bits as 8 | 4, head, ...(groupSize && { groupSize }) });
}

/**
 * --model llama-8B --device cuda --dtype bf16 --batch 1,32,128 --prompt 128 --new 128 --graph false
 * --temperature 0 --first 128,2048 --bits 16|8|4|e4m3 --group 128 --head 8 --experts mxfp4
 * --bandwidth 4.27e12 --repeats 5 --context 131072. tokens_per_s counts all texts during the steps
 * that process all of them. ops_per_step counts the ops of a step of one text. --profile runs each
 * row once more and prints the functions with the most host time.
 */
export async function decodeBench(options: Options): Promise<object> {
  const numbers = (name: string, standard: string): number[] =>
    (options[name] ?? standard).split(',').map(Number);
  const [prompt] = numbers('prompt', '128') as [number];
  const [count] = numbers('new', '128') as [number];
  const temperature = Number(options.temperature ?? 0);
  const repeats = Number(options.repeats ?? REPEATS);
  const batches = numbers('batch', '1,32,128');
  const firsts = numbers('first', '128,2048');
  const device = findDevice(options.device ?? 'cuda');
  const dtype = (options.dtype ?? 'bf16') as 'bf16' | 'fp16' | 'fp32';
  const longest = Math.max(
    prompt + count,
    Number(options.context ?? 0),
    ...firsts.map((length) => length + 1),
  );
  seed(1);
  const model = benchModel({ model: 'llama-8B', ...options }, Math.max(longest, 4096));
  if (options.experts === 'mxfp4') packExperts(model, device);
  model.to(device, dtype === 'fp32' ? 'f32' : dtype === 'fp16' ? 'f16' : 'bf16');
  quantize(model, options);
  const ops_per_step = await opsOfStep(model);
  console.log(JSON.stringify({ ops_per_step }));
  const graph = options.graph !== 'false' && device.kind === 'cuda';
  const engine = await initInference(model, {
    device: device.name,
    enable_cuda_graph: graph,
    max_out_tokens: longest,
    max_ragged_sequence_count: Math.max(...batches),
    kv_cache: { prefix_caching: false, ...(device.kind === 'cpu' && { blocks: 256 }) },
  });
  const bandwidth = Number(options.bandwidth ?? 4.27e12);
  const rows: object[] = [];
  for (const batch of batches) {
    const runs: Run[] = [];
    for (let turn = 0; turn < repeats + 2; ++turn) {
      const texts = prompts(batch, prompt, model.vocabSize, turn);
      runs.push(await once(engine, texts, { count, temperature }));
    }
    const of = (name: keyof Run): number => median(runs.slice(2).map((run) => run[name]));
    const read = bytesRead(model, batch, prompt + count / 2);
    const row = {
      batch,
      prompt,
      new: count,
      graph,
      weights: options.bits ?? dtype,
      ...(options.experts && { experts: options.experts }),
      prefill_ms: of('prefill'),
      decode_ms_per_step: of('step'),
      tokens_per_s: (batch / of('step')) * 1000,
      tokens_per_s_each: 1000 / of('step'),
      host_ms_per_step: of('host'),
      gb_per_s: read / of('step') / 1e6,
      share_of_bandwidth: (read / of('step')) * (1000 / bandwidth),
    };
    console.log(JSON.stringify(row));
    rows.push(row);
    if (options.profile) {
      const texts = prompts(batch, prompt, model.vocabSize, REPEATS + 2);
      const [, own_ms] = await hostProfile(() => once(engine, texts, { count, temperature }));
      for (const ownTime of own_ms)
        console.log(ownTime.ms.toFixed(1).padStart(8), ownTime.function);
      rows.push({ batch, own_ms });
    }
  }
  const first_token_ms: Record<string, number> = {};
  for (const length of firsts) {
    first_token_ms[length] = await firstToken(engine, length, model.vocabSize);
  }
  console.log(JSON.stringify({ first_token_ms }));
  await engine.destroy();
  return { ops_per_step, rows, first_token_ms };
}
