// Disables dropout in training, because methods compare log-probabilities, which dropout makes
// random.
import { Embedding, type Module } from '../../nn/index.js';
import { boolean } from '../../runtime/option.js';

/** Declares the option `disableDropout`. */
export const DROPOUT = boolean('train without dropout, also of adapters', {
  default: true,
  flag: 'disable_dropout',
});

/**
 * Sets all layers of `model` to evaluation mode during each forward. The model itself stays in
 * training mode outside its forward, because engines read it. Embeddings keep their mode, which
 * NEFTune's noise follows. Returns a function that restores the modes.
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
