// Runs searches with jobs that only write results.
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

import { autotune } from '../../lib/autotuning/index.js';
import { nn } from '../../lib/index.js';
import { type ModelInfo, sizesOf } from '../../lib/plan/index.js';

export const GIB = 2 ** 30;
export const GPT2 = sizesOf(new nn.models.GPT2(nn.models.GPT2.config('1558M')));

const SHORT = "[0,1] ConfigError [DsError]: no memory: here\n  code: 'DS_OUT_OF_MEMORY'";

/** GPT-2 1558M in bf16 on devices of `memory` bytes. */
export const infoOf = (ranks: number, memory: number): ModelInfo => ({
  num_params: GPT2.parameters,
  trainable_num_params: GPT2.parameters,
  sizes: GPT2,
  activation_mem_per_gpu: GIB,
  sequence_length: 1024,
  knowsActivations: true,
  checkpointing: false,
  isHost: false,
  deviceName: 'cuda:0',
  card: '',
  stateBytes: 8,
  canSplit: true,
  canSpeculate: true,
  available: { device: memory, host: 512 * GIB, hostAtMost: 512 * GIB, disk: 0 },
  cluster: { nodes: 1, devicesPerNode: ranks, coresPerNode: 16, nodeLink: 50e9 },
  mesh: { data: ranks, tokens: 1, layers: 1, stages: 1 },
});

export interface Config {
  train_micro_batch_size_per_gpu: number;
  gradient_accumulation_steps: number;
  train_batch_size?: number;
  zero_optimization: { stage: number; [key: string]: unknown };
  autotuning: { metric_path?: string; model_info_path?: string; model_info?: object };
}

export interface Searched {
  info?: ModelInfo;
  /** Ranks of a node. */
  slots?: number;
  args?: readonly string[];
  known?: Record<string, string>;
  /** Samples per second; null for out of memory, `'none'` for another failure. */
  speed?: (config: Config) => number | null | 'none';
  /** The output of a job with another failure. */
  stderr?: string;
  isRemote?: boolean;
}

/** Runs a search in the folder `dir`; `tried` has the arguments of each job but the first. */
export async function searchIn(dir: string, file: object, options: Searched = {}) {
  const { info = infoOf(2, 44 * GIB), speed = () => 1, args = [], isRemote = false } = options;
  const { slots = 2, stderr = '' } = options;
  const path = join(dir, 'ds_config.json');
  const folders = { results_dir: join(dir, 'results'), exps_dir: join(dir, 'exps') };
  const { autotuning, ...rest } = file as { autotuning?: object };
  writeFileSync(path, JSON.stringify({ ...rest, autotuning: { ...folders, ...autotuning } }));
  const tried: { name: string; config: Config; args: readonly string[] }[] = [];
  const lines: string[] = [];
  const run = async (words: readonly string[], { err }: { err: string }) => {
    const word = words[words.indexOf('--deepspeed') + 1] as string;
    const text = isRemote ? Buffer.from(word, 'base64url') : readFileSync(word);
    const config = JSON.parse(text.toString()) as Config;
    const { model_info_path: first, metric_path: metrics } = config.autotuning;
    if (first) {
      writeFileSync(first, JSON.stringify(info));
      if (info.activation_mem_per_gpu === null) writeFileSync(err, SHORT);
      return { code: 0, isInterrupted: false };
    }
    tried.push({ name: (metrics ?? '').split('/').at(-2) as string, config, args: words });
    const throughput = speed(config);
    if (throughput === null || throughput === 'none') {
      writeFileSync(err, throughput === null ? SHORT : stderr);
      return { code: 1, isInterrupted: false };
    }
    const latency = 1000 / throughput;
    const result = { latency, throughput, train_batch_size: 1, peak_memory: GIB };
    writeFileSync(metrics as string, JSON.stringify(result));
    return { code: 0, isInterrupted: false };
  };
  const found = await autotune({
    args: ['--deepspeed', path, ...args],
    known: options.known ?? {},
    jobs: { slots, nodes: 1, isRemote, run, command: (words) => words.join(' ') },
    print: (line) => lines.push(line),
  });
  const best = found.file ? (JSON.parse(readFileSync(found.file, 'utf8')) as Config) : null;
  return { found, best, tried, lines, names: tried.map(({ name }) => name) };
}

export const BF16 = { bf16: { enabled: true } };
