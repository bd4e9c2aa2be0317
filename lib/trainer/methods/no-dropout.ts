// Training without dropout: a method compares log-probabilities, which dropout makes random.
import { Embedding, type Module } from '../../nn/index.js';
import { boolean } from '../../runtime/option.js';

/** Declares the option `disableDropout`. */
export const DROPOUT = boolean('train without dropout, also without that of adapters', {
  default: true,
  flag: 'disable_dropout',
});

/**
 * Puts all layers of `model` into evaluation mode at each forward. The model itself stays in
 * training mode outside its forward, because engines read it. Tables of tokens keep their mode:
 * NEFTune's noise follows it. Returns a function that ends this.
 */
export function withoutDropout(model: Module): () => void {
  let wasTraining = model.training;
  const before = model.registerForwardPreHook(() => {
    wasTraining = model.training;
    for (const module of model.modules()) {
      if (!(module instanceof Embedding)) module.training = false;
    }
  });
  const after = model.registerForwardHook(() => {
    model.training = wasTraining;
  });
  return () => {
    before();
    after();
    model.train(model.training);
  };
}
