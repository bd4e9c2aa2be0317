// Disables dropout during training: the methods compare log-probabilities, which dropout would make
// random.
import { Embedding, type Module } from '../../nn/index.js';
import { boolean } from '../../runtime/option.js';

/** Declares the option `disableDropout` of the methods. */
export const DROPOUT = boolean('train without dropout, also of adapters', {
  default: true,
  flag: 'disable_dropout',
});

/**
 * Puts all layers of `model` in evaluation mode during each forward.
 *
 * - Outside of its forward, the model itself stays in training mode, because engines read that
 *   mode.
 * - Embeddings keep their mode, because the noise of NEFTune depends on it.
 *
 * Returns a function that restores the modes.
 */
export function withoutDropout(model: Module): () => void {
  let wasTraining = model.training;
  const removePreHook = model.registerForwardPreHook(() => {
    wasTraining = model.training;
    for (const module of model.modules()) {
      if (!(module instanceof Embedding)) module.training = false;
    }
  });
  const removeHook = model.registerForwardHook(() => {
    model.training = wasTraining;
  });
  return () => {
    removePreHook();
    removeHook();
    model.train(model.training);
  };
}
