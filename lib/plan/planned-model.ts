// Creates the model of a plan from a GPT-2 size or a model folder.
import { DsError } from '../errors.js';
import { type CausalLM, fromConfig, GPT2 } from '../models/index.js';
import { addLora, quantizeUnmade } from '../peft/index.js';

/** Adapters to train instead of the model. */
export interface PlannedAdapters {
  /** Rank of the adapters. */
  r: number;
  /** Names of the layers with adapters, or "all-linear"; null: PEFT's default for the family. */
  targetModules: string | readonly string[] | null;
  /** Whether the base layers are quantized to 4 bits (QLoRA). */
  isQuantized: boolean;
}

const GPT2_SIZE = /^(gpt2-)?(tiny|\d+M|\d+B)$/;

/** Returns whether `name` is a size such as "124M", not a folder. */
export const isGpt2Size = (name: string): boolean => GPT2_SIZE.test(name);

/**
 * Creates a model without allocated parameters. `name` is a GPT-2 size ("124M", "1558M", "10B") or
 * a folder with a config.json. Throws DS_ARGUMENT for another name, DS_CHECKPOINT or DS_IO for a
 * folder that it cannot read.
 */
export function createPlannedModel(
  name: string,
  adapters: PlannedAdapters | null = null,
): CausalLM {
  const base = createBaseModel(name);
  if (!adapters) return base;
  const { r, targetModules, isQuantized } = adapters;
  const model = isQuantized ? quantizeUnmade(base) : base;
  return addLora(model, { r, ...(targetModules !== null && { targetModules }) });
}

function createBaseModel(name: string): CausalLM {
  if (isGpt2Size(name)) return new GPT2(GPT2.config(name));
  if (name) return fromConfig(name);
  throw new DsError({
    code: 'DS_ARGUMENT',
    op: 'plan model',
    expected: 'a size of GPT-2, such as "1558M", or a folder with a config.json',
    got: 'nothing',
  });
}
