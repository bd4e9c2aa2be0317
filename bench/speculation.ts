// Compares the speed of one sequence with and without speculation, at a recorded acceptance rate.
//
// Weights are random, so no real text is copied. The request allows one token only, and the
// proposals of each step have as many of these tokens as the recorded step accepted. An EAGLE-3
// head drafts all of them before they are replaced.
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { writeSafetensors } from '../lib/checkpoint/safetensors-writer.js';
import { type inference, initInference, type nn, seed } from '../lib/index.js';
import { DraftLength } from '../lib/inference/speculation/draft-length.js';
import { DraftModel } from '../lib/inference/speculation/draft-model.js';
import { PromptLookup } from '../lib/inference/speculation/prompt-lookup.js';
import { RotaryLM } from '../lib/models/rotary/rotary-lm.js';
import { device as findDevice } from '../lib/runtime/device.js';
import * as kernels from '../lib/runtime/kernels.generated.js';
import { held, inOrder, Tensor } from '../lib/tensor/index.js';
import type { Options } from './main.js';
import { benchModel } from './models.js';
import { median } from './report.js';

/** Proposed and accepted tokens of each step. */
type Steps = readonly (readonly [proposed: number, accepted: number])[];

const [TOKEN, WRONG] = [1, 2];

/** Steps to impose, by name. */
function casesOf({ steps, accept }: Options): Record<string, Steps> {
  const named = accept?.split(',').map((text): [string, Steps] => {
    const [accepted = 0, proposed = 0] = text.split('/').map(Number);
    return [text, [[proposed, accepted]]];
  });
  const file = steps ?? (named ? null : 'bench/results/speculation-copy.json');
  const read = file && (JSON.parse(readFileSync(file, 'utf8')).result.steps as Steps);
  return { ...Object.fromEntries(named ?? []), ...(file && read && { [file]: read }) };
}

/** Replaces proposals by the recorded steps, from the token after `prompt` on. */
function impose(steps: Steps, prompt: number): void {
  const starts: number[] = [];
  let total = 0;
  for (const [, accepted] of steps) {
    starts.push(total);
    total += accepted + 1;
  }
  const stepAt = (tokens: number): Steps[number] => {
    // The first token comes from the prompt's step.
    const at = Math.max(0, tokens - prompt - 1) % total;
    return steps[starts.findLastIndex((start) => start <= at)] ?? [0, 0];
  };
  const proposalsAt = (tokens: number, most: number): number[] => {
    const [proposed, accepted] = stepAt(tokens);
    const count = Math.min(proposed, most);
    return Array.from({ length: count }, (_, i) => (i < accepted ? TOKEN : WRONG));
  };
  DraftLength.prototype.lengthFor = (tokens) => stepAt(tokens)[0];
  PromptLookup.prototype.propose = function (most) {
    const { tokens } = this as unknown as { tokens: readonly number[] };
    return proposalsAt(tokens.length, most);
  };
  DraftModel.prototype.fill = async function (sequences, draw) {
    await drafted.call(this, sequences, draw);
    for (const sequence of sequences) {
      sequence.proposals = proposalsAt(sequence.tokens.length, sequence.proposals.length);
    }
  };
}

const drafted = DraftModel.prototype.fill;

/**
 * Writes the folder of an EAGLE-3 head of `model` with random weights; it has the model's sizes.
 */
async function randomHead(model: nn.models.CausalLM, predicted: number): Promise<string> {
  if (!(model instanceof RotaryLM)) throw new Error('--head needs a model with rotary positions');
  const { channels, hidden, heads } = model.config;
  const { kvHeads, headDim, dtype, device } = model.cacheShape();
  const count = Math.min(predicted, model.vocabSize);
  const shapes: Record<string, number[]> = {
    'fc.weight': [channels, 3 * channels],
    'midlayer.input_layernorm.weight': [channels],
    'midlayer.hidden_norm.weight': [channels],
    'midlayer.self_attn.q_proj.weight': [heads * headDim, 2 * channels],
    'midlayer.self_attn.k_proj.weight': [kvHeads * headDim, 2 * channels],
    'midlayer.self_attn.v_proj.weight': [kvHeads * headDim, 2 * channels],
    'midlayer.self_attn.o_proj.weight': [channels, heads * headDim],
    'midlayer.post_attention_layernorm.weight': [channels],
    'midlayer.mlp.gate_proj.weight': [hidden, channels],
    'midlayer.mlp.up_proj.weight': [hidden, channels],
    'midlayer.mlp.down_proj.weight': [channels, hidden],
    'norm.weight': [channels],
    'lm_head.weight': [count, channels],
  };
  const dir = mkdtempSync(join(tmpdir(), 'ds-bench-head-'));
  const config = {
    architectures: ['LlamaForCausalLMEagle3'],
    model_type: 'llama',
    num_hidden_layers: 1,
    hidden_size: channels,
    intermediate_size: hidden,
    num_attention_heads: heads,
    num_key_value_heads: kvHeads,
    head_dim: headDim,
    vocab_size: model.vocabSize,
    draft_vocab_size: count,
    max_position_embeddings: 4096,
    rms_norm_eps: 1e-5,
    hidden_act: 'silu',
    tie_word_embeddings: false,
  };
  writeFileSync(join(dir, 'config.json'), JSON.stringify(config));
  const drawTensor = (shape: number[], index: number): Tensor => {
    const out = held(() => Tensor.empty(shape, dtype, device));
    kernels.randomUniform({ out, low: -0.02, high: 0.02, seed: index, offset: 0, ...inOrder });
    return out;
  };
  const tensors = Object.entries(shapes).map(([name, shape], i) => ({
    name,
    shape,
    dtype,
    values: async () => drawTensor(shape, i),
  }));
  const offsets = held(() => Tensor.from(new Array(count).fill(0), { dtype: 'i64' }));
  const table = { name: 'd2t', shape: [count], dtype: 'i64' as const, values: offsets };
  await writeSafetensors(join(dir, 'model.safetensors'), [...tensors, table]);
  offsets.release();
  return dir;
}

interface Run {
  /** Milliseconds from the first to the last token. */
  readonly time: number;
  readonly stats: inference.InferenceStats;
  readonly before: inference.InferenceStats;
}

async function once(engine: inference.InferenceEngine, prompt: number[], count: number) {
  const request = { prompt, maxNewTokens: count, temperature: 0, allowedTokens: [TOKEN] };
  let [first, tokens] = [0, 0];
  let before = engine.stats();
  for await (const piece of engine.stream({ ...request, ignoreEos: true })) {
    if (piece.tokens.length > 0 && ++tokens === 1)
      [first, before] = [performance.now(), engine.stats()];
  }
  const run: Run = { time: performance.now() - first, before, stats: engine.stats() };
  return run;
}

/**
 * --model llama-8B --device cuda --dtype bf16 --prompt 128 --new 256 --steps FILE --accept 3/7,1/3
 * --rounds 5. `ratio` is the speed against the first row, without speculation. With --head eagle3,
 * a head of random weights drafts the proposals; --accept has the imposed ones.
 */
export async function speculationBench(options: Options): Promise<object> {
  const [prompt, count] = [Number(options.prompt ?? 128), Number(options.new ?? 256)];
  const rounds = Number(options.rounds ?? 5);
  const device = findDevice(options.device ?? 'cuda');
  seed(1);
  const model = benchModel({ model: 'llama-8B', ...options }, 4096);
  model.to(device, (options.dtype ?? 'bf16') === 'bf16' ? 'bf16' : 'f32');
  const tokens = Array.from({ length: prompt }, (_, i) => (31 * i + 1) % model.vocabSize);
  const head = options.head ? await randomHead(model, Number(options.predicted ?? 32_000)) : null;
  const rows: object[] = [];
  let plain = 0;
  const cases: Record<string, Steps> = { none: [], ...casesOf(options) };
  for (const [acceptance, steps] of Object.entries(cases)) {
    const most = steps.reduce((all, [proposed]) => Math.max(all, proposed), 0);
    if (most > 0) impose(steps, prompt);
    const engine = await initInference(model, {
      device: device.name,
      enable_cuda_graph: 'auto',
      max_out_tokens: prompt + count,
      max_ragged_sequence_count: 1,
      kv_cache: { prefix_caching: false, blocks: 64 },
      speculative:
        most > 0
          ? { num_speculative_tokens: most, ...(head && { method: 'eagle3', model: head }) }
          : null,
    });
    const runs: Run[] = [];
    for (let i = 0; i < rounds + 2; ++i) runs.push(await once(engine, tokens, count));
    const timed = runs.slice(2);
    const sum = (of: (stats: inference.InferenceStats) => number): number =>
      timed.reduce((all, { stats, before }) => all + of(stats) - of(before), 0);
    const taken = sum((stats) => stats.steps);
    const speed = ((count - 1) / median(timed.map((run) => run.time))) * 1000;
    plain ||= speed;
    const row = {
      acceptance,
      ...(head && { head: options.head }),
      prompt,
      new: count,
      tokens_per_s: speed,
      ratio: speed / plain,
      ms_per_step: timed.reduce((all, { time }) => all + time, 0) / taken,
      host_ms_per_step: sum((stats) => stats.hostMs) / taken,
      tokens_per_step: sum((stats) => stats.generatedTokens) / taken,
      accepted: sum((stats) => stats.acceptedTokens) / (sum((stats) => stats.proposedTokens) || 1),
    };
    console.log(JSON.stringify(row));
    rows.push(row);
    await engine.destroy();
  }
  if (head) rmSync(head, { recursive: true });
  return { rows };
}
