// Errors of inputs and settings that models with rotary positions refuse.
import { DsError } from '../../errors.js';
import { required } from '../../runtime/required.js';
import { angleRegime, type RopeScaling } from './rope-scaling.js';

/** A skipped block would leave no keys for the blocks that read them. */
export function droppedSourceError(model: string): DsError {
  return new DsError({
    code: 'DS_ARGUMENT',
    op: `${model} layerFactors`,
    expected: 'no value, because blocks read the keys and values of others',
    got: 'factors of blocks',
    hint: 'Disable progressive_layer_drop.',
  });
}

export function overflowError(model: string): DsError {
  return new DsError({
    code: 'DS_DTYPE',
    op: model,
    expected: 'weights in bf16 or f32, because its values exceed the range of f16',
    got: 'f16',
    hint: 'Read the model with { dtype: "bf16" }, and set bf16 instead of fp16.',
  });
}

/** Throws DS_ARGUMENT if texts of up to `longest` tokens have different angles. */
export function requireOneRegime(scaling: RopeScaling | null, longest: number): void {
  if (angleRegime(scaling, longest) === angleRegime(scaling, 1)) return;
  const { type } = required(scaling);
  throw new DsError({
    code: 'DS_ARGUMENT',
    op: 'inputs of a model with rope scaling',
    expected: `documents and positions below the length at which "${type}" depends on the text`,
    got: `up to ${longest} tokens`,
    hint: 'Use rows of at most original_max_position_embeddings tokens for documents, or one text per row.',
  });
}
