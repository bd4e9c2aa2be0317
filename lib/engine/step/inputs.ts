// Inputs of forward(): casts to 16 bits, and the positions of this rank's samples in the batch.
import type { ResolvedConfig } from '../../../types/config.js';
import { DsError } from '../../errors.js';
import { isFloating } from '../../runtime/dtype.js';
import { formatValue } from '../../runtime/format-value.js';
import { isPlainObject } from '../../runtime/is-object.js';
import { type SampleShare, Tensor, tensorsIn } from '../../tensor/index.js';

/**
 * Converts the inputs of forward() to inputs of the model. The scope of the call owns new tensors.
 */
export type InputCast = (inputs: unknown[]) => unknown[];

const keepInputs: InputCast = (inputs) => inputs;

/**
 * Returns the result of a model's method `method`, which must be a list of inputs. Throws
 * DS_ARGUMENT if it is not.
 */
export function requireInputs(method: string, inputs: unknown): unknown[] {
  if (Array.isArray(inputs)) return inputs;
  const expected = 'the inputs of forward(), a list';
  throw new DsError({ code: 'DS_ARGUMENT', op: `${method}()`, expected, got: formatValue(inputs) });
}

/**
 * Returns a cast of floating-point tensors to `dtype`, also in lists and plain objects. Other
 * values stay.
 */
function castFloats(dtype: 'f16' | 'bf16'): InputCast {
  const cast = (value: unknown): unknown => {
    if (value instanceof Tensor) return isFloating(value.dtype) ? value.to(dtype) : value;
    if (Array.isArray(value)) return value.map(cast);
    if (!isPlainObject(value)) return value;
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, cast(item)]));
  };
  return (inputs) => inputs.map(cast);
}

/**
 * Returns the cast for fp16.auto_cast and torch_autocast. Source: _cast_inputs_half of DeepSpeed's
 * engine.
 */
export function inputCastOf({ fp16, bf16, torch_autocast: autocast }: ResolvedConfig): InputCast {
  if (fp16.enabled && (fp16.auto_cast || autocast.enabled)) return castFloats('f16');
  return bf16.enabled && autocast.enabled ? castFloats('bf16') : keepInputs;
}

/**
 * Returns which samples of the global batch this rank has, or null if it has all. As with
 * DistributedSampler, data rank `rank` of `size` has the samples `rank`, `rank` + `size`, and so
 * on.
 */
export function sampleShareOf(
  inputs: readonly unknown[],
  { rank, size: ranks }: { rank: number; size: number },
): SampleShare | null {
  if (ranks === 1) return null;
  const samples = tensorsIn(inputs)[0]?.shape[0] ?? 0;
  return samples > 0 ? { samples, rank, ranks } : null;
}
