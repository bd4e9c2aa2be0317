// The inputs of a forward: casts to 16 bits, and the samples of this rank.
import type { ResolvedConfig } from '../../../types/config.js';
import { DsError } from '../../errors.js';
import { isFloating } from '../../runtime/dtype.js';
import { formatValue } from '../../runtime/format-value.js';
import { isPlainObject } from '../../runtime/is-object.js';
import { type SampleShare, Tensor, tensorsIn } from '../../tensor/index.js';

/**
 * Maps the inputs of forward() to inputs of the model. New tensors belong to the scope of the call.
 */
export type InputCast = (inputs: unknown[]) => unknown[];

const keepInputs: InputCast = (inputs) => inputs;

/**
 * Returns the result of a model's method as a list of inputs. Throws DS_ARGUMENT if it is not a
 * list.
 */
export function requireInputs(method: string, inputs: unknown): unknown[] {
  if (Array.isArray(inputs)) return inputs;
  const expected = 'the inputs of forward(), a list';
  throw new DsError({ code: 'DS_ARGUMENT', op: `${method}()`, expected, got: formatValue(inputs) });
}

/** Casts floating-point tensors to `dtype`, also in lists and plain objects. Other values stay. */
function castFloats(dtype: 'f16' | 'bf16'): InputCast {
  const cast = (value: unknown): unknown => {
    if (value instanceof Tensor) return isFloating(value.dtype) ? value.to(dtype) : value;
    if (Array.isArray(value)) return value.map(cast);
    if (!isPlainObject(value)) return value;
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, cast(item)]));
  };
  return (inputs) => inputs.map(cast);
}

/** For fp16.auto_cast and torch_autocast. Source: _cast_inputs_half of the engine of DeepSpeed. */
export function inputCastOf({ fp16, bf16, torch_autocast: autocast }: ResolvedConfig): InputCast {
  if (fp16.enabled && (fp16.auto_cast || autocast.enabled)) return castFloats('f16');
  return bf16.enabled && autocast.enabled ? castFloats('bf16') : keepInputs;
}

/**
 * Samples are distributed as in DistributedSampler: data rank `rank` of `size` has the samples
 * `rank`, `rank` + `size`, ... Returns null if it has all samples.
 */
export function sampleShareOf(
  inputs: readonly unknown[],
  { rank, size: ranks }: { rank: number; size: number },
): SampleShare | null {
  if (ranks === 1) return null;
  const samples = tensorsIn(inputs)[0]?.shape[0] ?? 0;
  return samples > 0 ? { samples, rank, ranks } : null;
}
