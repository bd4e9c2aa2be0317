// A tiny model folder with a tokenizer, and the log-probabilities that its logits give.
import { cpSync } from 'node:fs';
import { join } from 'node:path';
import { nn, noGrad, scope, seed, Tensor } from '../../lib/index.js';
import { packageRoot } from '../../lib/runtime/package-root.js';

export const TOKENIZER = join(packageRoot(), 'examples', 'tokenizer');
/** Longest sequence of the model. */
export const MAX_SEQ = 24;

/** Writes a Llama of random weights that are large enough for clear choices. */
export async function writeModel(dir: string): Promise<void> {
  seed(3);
  const sizes = { layers: 2, heads: 2, kvHeads: 1, channels: 32, hidden: 64, maxSeq: MAX_SEQ };
  const model = new nn.models.Llama({ vocabSize: 1007, ...sizes, tied: true });
  for (const parameter of model.parameters()) noGrad(() => void parameter.mul_(4));
  await nn.saveWeights(model, dir, { format: 'hf' });
  cpSync(TOKENIZER, dir, { recursive: true });
}

/** Log-probabilities [T][V] of one sequence in f64, from the logits of the model. */
export function logProbabilities(model: nn.models.CausalLM, ids: readonly number[]): number[][] {
  const wasTraining = model.training;
  model.eval();
  const rows = noGrad(() =>
    scope(() => {
      const device = model.parameters()[0]?.device;
      const tokens = Tensor.from(Int32Array.from(ids), { shape: [1, ids.length], device });
      return model.call(tokens).to('f32').contiguous().toArray();
    }),
  ) as number[];
  if (wasTraining) model.train();
  const width = rows.length / ids.length;
  return ids.map((_, t) => {
    const logits = rows.slice(t * width, (t + 1) * width);
    const largest = Math.max(...logits);
    const sum = logits.reduce((total, value) => total + Math.exp(value - largest), 0);
    return logits.map((logit) => logit - largest - Math.log(sum));
  });
}

/** The number of the largest value. */
export const best = (values: readonly number[]): number => values.indexOf(Math.max(...values));
