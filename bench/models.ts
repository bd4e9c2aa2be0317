// The models that benchmarks train, by name: GPT-2's published sizes, and Llama's shapes of random
// weights.
import { DsError } from '../lib/errors.js';
import * as models from '../lib/models/index.js';
import * as peft from '../lib/peft/index.js';
import type { Options } from './main.js';

type LlamaShape = Omit<models.LlamaConfig, 'maxSeq'>;

const LLAMA_3 = { vocabSize: 128_256, kvHeads: 8, ropeTheta: 500_000, eps: 1e-5 };

/** Source: the config.json of Llama 3.2 1B and Llama 3.1 8B; tiny is for a dry run. */
const llamas: Readonly<Record<string, LlamaShape>> = {
  'llama-tiny': {
    ...{ vocabSize: 1024, layers: 2, channels: 64, heads: 4, kvHeads: 2, hidden: 160, tied: true },
  },
  'llama-1B': {
    ...{ ...LLAMA_3, layers: 16, channels: 2048, heads: 32, hidden: 8192, tied: true },
  },
  'llama-8B': { ...LLAMA_3, layers: 32, channels: 4096, heads: 32, hidden: 14_336 },
};

/** The options that say how a model keeps its activations. */
function checkpointMode({ checkpoint }: Options): boolean | 'selective' {
  return checkpoint === 'selective' ? 'selective' : checkpoint !== undefined;
}

/**
 * --model NAME, --checkpoint, --lora RANK and --qlora RANK (alpha twice the rank, all linear layers
 * but the head).
 */
export function benchModel(options: Options, seq: number): models.CausalLM {
  const model = plainModel(options, seq);
  const rank = options.qlora ?? options.lora;
  if (rank === undefined) return model;
  if (options.qlora) peft.quantize(model);
  const r = rank === 'true' ? 16 : Number(rank);
  return peft.addLora(model, { r, loraAlpha: 2 * r, targetModules: 'all-linear' });
}

/** --model NAME and --checkpoint, for sequences of `seq` tokens. Throws DS_ARGUMENT. */
function plainModel(options: Options, seq: number): models.CausalLM {
  const name = options.model ?? '124M';
  const activationCheckpointing = checkpointMode(options);
  const llama = llamas[name];
  if (!llama) return new models.GPT2({ ...models.GPT2.config(name), activationCheckpointing });
  if (activationCheckpointing === 'selective') {
    throw new DsError({
      code: 'DS_ARGUMENT',
      op: 'bench train --checkpoint',
      expected: `nothing behind it for ${name}`,
      got: 'selective',
    });
  }
  return new models.Llama({ ...llama, maxSeq: seq, activationCheckpointing });
}
