// Adds noise to token embeddings in training (NEFTune), as transformers does. Source: Jain et al.
// 2023.

import { CausalLM } from '../models/index.js';
import type { Module } from '../nn/index.js';
import { valueError } from '../runtime/input-errors.js';
import { leading, required } from '../runtime/required.js';
import { noiseLike, sharedTokens, type Tensor } from '../tensor/index.js';

/**
 * Adds uniform noise between -1 and 1 times `alpha` / sqrt(T C) to the token embeddings [B, T, C]
 * of a model in training mode. Like dropout, the noise of a sample is the same on whatever rank it
 * is. Returns a function that removes the noise. Throws DS_ARGUMENT if `model` is not a language
 * model.
 */
export function addEmbeddingNoise(model: Module, alpha: number): () => void {
  if (!(model instanceof CausalLM)) {
    const expected = 'a language model of nn.models';
    throw valueError('Trainer neftuneNoiseAlpha', expected, model);
  }
  const table = required(model.pipelineLayers()[0]?.modules[0]);
  return table.registerForwardHook((_module, _inputs, output) => {
    if (!table.training) return null;
    const embedded = output as Tensor;
    const [, ownLength, channels] = leading(embedded.shape, 3);
    const length = sharedTokens()?.whole ?? ownLength;
    return embedded.add(noiseLike(embedded, alpha / Math.sqrt(length * channels)));
  });
}
