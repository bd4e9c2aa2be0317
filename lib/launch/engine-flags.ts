// The model options of `ds serve` and `ds chat`.

import { readFileSync } from 'node:fs';
import { errorMessage } from '../runtime/system-error.js';

import type { EngineOptions } from '../serve/index.js';
import { refuse } from './argument-error.js';

/** Options of both commands. */
export interface EngineFlags {
  /** Branch, tag or commit of a model of the hub. */
  revision?: string;
  device?: string;
  dtype?: string;
  context?: number;
  config?: string;
  tokenizer?: string;
  tp?: number;
  seed?: number;
  chatTemplate?: string;
  /** Whether steps are recorded where they can be; false of --no-graphs. */
  graphs: boolean;
}

/** How the engine is opened. Throws DS_ARGUMENT for a file that cannot be read. */
export function engineOptions(flags: EngineFlags): EngineOptions {
  const { device, dtype, context, config, tokenizer, tp = 1, seed, graphs } = flags;
  const { revision } = flags;
  const ranks = tp > 1 ? { tp_size: tp } : undefined;
  const enable_cuda_graph = graphs ? undefined : false;
  const said = { device, dtype, max_out_tokens: context, tensor_parallel: ranks };
  const given = Object.entries({ ...said, enable_cuda_graph }).filter(
    ([, one]) => one !== undefined,
  );
  const standard = { enable_cuda_graph: 'auto' as const };
  const all = { ...standard, ...configOf(config), ...Object.fromEntries(given) };
  return { config: all, tokenizer, seed, revision };
}

/** The text of a file; undefined without a file. */
export function textOf(file: string | undefined): string | undefined {
  if (file === undefined) return undefined;
  try {
    return readFileSync(file, 'utf8');
  } catch (cause) {
    refuse('--chat-template', 'a readable file', errorMessage(cause));
  }
}

function configOf(file: string | undefined): object {
  if (file === undefined) return {};
  try {
    return JSON.parse(readFileSync(file, 'utf8'));
  } catch (cause) {
    refuse('--config', 'a readable JSON file', errorMessage(cause));
  }
}
