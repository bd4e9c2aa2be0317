// The model of a plan: a published size by its name, or the sizes of a folder.
import { DsError } from '../errors.js';
import { type CausalLM, fromConfig, GPT2 } from '../models/index.js';
import { addLora, quantizeUnmade } from '../peft/index.js';

/** Adapters that are to be trained in place of the model. */
export interface PlannedAdapters {
  /** Their rank. */
  r: number;
  /** Names of the layers that get one, or "all-linear"; null: PEFT's for the family. */
  targetModules: string | readonly string[] | null;
  /** Whether the layers beneath are in 4 bits. */
  isQuantized: boolean;
}

const GPT2_SIZE = /^(gpt2-)?(tiny|\d+M|\d+B)$/;

/**
 * A model whose parameters have no memory, by GPT-2's "124M", "1558M" or "10B", or the config.json
 * of a folder, with its adapters. Throws DS_ARGUMENT, DS_CHECKPOINT, DS_IO.
 */
export function plannedModel(name: string, adapters: PlannedAdapters | null = null): CausalLM {
  const base = baseModel(name);
  if (!adapters) return base;
  const { r, targetModules, isQuantized } = adapters;
  const model = isQuantized ? quantizeUnmade(base) : base;
  return addLora(model, { r, ...(targetModules !== null && { targetModules }) });
}

function baseModel(name: string): CausalLM {
  if (GPT2_SIZE.test(name)) return new GPT2(GPT2.config(name));
  if (name) return fromConfig(name);
  throw new DsError({
    code: 'DS_ARGUMENT',
    op: 'plan model',
    expected: 'a size of GPT-2, such as "1558M", or a folder with a config.json',
    got: 'nothing',
  });
}
