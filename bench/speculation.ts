// Speed of one sequence with speculation at a recorded acceptance, against the same without it.
//
// Weights are random, so no real text is copied. The request allows one token only, and the
// proposals of each step have as many of these tokens as the recorded step accepted.
import { readFileSync } from 'node:fs';
import { type inference, initInference, seed } from '../lib/index.js';
import { DraftLength } from '../lib/inference/speculation/draft-length.js';
import { PromptLookup } from '../lib/inference/speculation/prompt-lookup.js';
import { device as findDevice } from '../lib/runtime/device.js';
import type { Options } from './main.js';
import { benchModel } from './models.js';
import { median } from './report.js';

/** Proposed and accepted tokens of each step. */
type Steps = readonly (readonly [proposed: number, accepted: number])[];

const [TOKEN, WRONG] = [1, 2];

/** Steps to impose, by name. */
function casesOf({ steps, accept }: Options): Record<string, Steps> {
  const named = accept?.split(',').map((one): [string, Steps] => {
    const [accepted = 0, proposed = 0] = one.split('/').map(Number);
    return [one, [[proposed, accepted]]];
  });
  const file = steps ?? (named ? null : 'bench/results/speculation-copy.json');
  const read = file && (JSON.parse(readFileSync(file, 'utf8')).result.steps as Steps);
  return { ...Object.fromEntries(named ?? []), ...(file && read && { [file]: read }) };
}

/** Replaces lookups by the recorded steps, from the token after `prompt` on. */
function impose(steps: Steps, prompt: number): void {
  const starts: number[] = [];
  let total = 0;
  for (const [, accepted] of steps) {
    starts.push(total);
    total += accepted + 1;
  }
  DraftLength.prototype.at = () => Number.POSITIVE_INFINITY;
  PromptLookup.prototype.propose = function (most) {
    const { tokens } = this as unknown as { tokens: readonly number[] };
    // The first token comes from the prompt's step.
    const at = (tokens.length - prompt - 1) % total;
    const [proposed, accepted] = steps[starts.findLastIndex((start) => start <= at)] ?? [0, 0];
    const all = Array.from({ length: proposed }, (_, i) => (i < accepted ? TOKEN : WRONG));
    return all.slice(0, most);
  };
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
 * --rounds 5. `ratio` is the speed against the first row, without speculation.
 */
export async function speculationBench(options: Options): Promise<object> {
  const [prompt, count] = [Number(options.prompt ?? 128), Number(options.new ?? 256)];
  const rounds = Number(options.rounds ?? 5);
  const device = findDevice(options.device ?? 'cuda');
  seed(1);
  const model = benchModel({ model: 'llama-8B', ...options }, 4096);
  model.to(device, (options.dtype ?? 'bf16') === 'bf16' ? 'bf16' : 'f32');
  const tokens = Array.from({ length: prompt }, (_, i) => (31 * i + 1) % model.vocabSize);
  const rows: object[] = [];
  let plain = 0;
  const cases: Record<string, Steps> = { none: [], ...casesOf(options) };
  for (const [acceptance, steps] of Object.entries(cases)) {
    const most = steps.reduce((all, [proposed]) => Math.max(all, proposed), 0);
    if (most > 0) impose(steps, prompt);
    const engine = await initInference(model, {
      ...{ device: device.name, enable_cuda_graph: 'auto', max_out_tokens: prompt + count },
      ...{ max_ragged_sequence_count: 1, kv_cache: { prefix_caching: false, blocks: 64 } },
      speculative: most > 0 ? { num_speculative_tokens: most } : null,
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
      ...{ acceptance, prompt, new: count, tokens_per_s: speed, ratio: speed / plain },
      ms_per_step: timed.reduce((all, { time }) => all + time, 0) / taken,
      host_ms_per_step: sum((stats) => stats.hostMs) / taken,
      tokens_per_step: sum((stats) => stats.generatedTokens) / taken,
      accepted: sum((stats) => stats.acceptedTokens) / (sum((stats) => stats.proposedTokens) || 1),
    };
    console.log(JSON.stringify(row));
    rows.push(row);
    await engine.destroy();
  }
  return { rows };
}
