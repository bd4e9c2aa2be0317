// Casts the inputs of forward() to 16 bits with fp16.auto_cast or torch_autocast. Source:
// DeepSpeed's engine, _cast_inputs_half.
import type { ResolvedConfig } from '../../../types/config.js';
import { DsError } from '../../errors.js';
import { isFloating } from '../../runtime/dtype.js';
import { formatValue } from '../../runtime/format-value.js';
import { isPlainObject } from '../../runtime/is-object.js';
import { Tensor } from '../../tensor/index.js';

/**
 * Maps the inputs of forward() to inputs of the model. New tensors belong to the scope of the call.
 */
export type InputCast = (inputs: unknown[]) => unknown[];

const asGiven: InputCast = (inputs) => inputs;

/**
 * Returns the result of a model's method as a list of inputs. Throws DS_ARGUMENT if it is not a
 * list.
 */
export function requireInputs(method: string, made: unknown): unknown[] {
  if (Array.isArray(made)) return made;
  const expected = 'the inputs of forward(), a list';
  throw new DsError({ code: 'DS_ARGUMENT', op: `${method}()`, expected, got: formatValue(made) });
}

/** Casts floating-point tensors to `dtype`, also in lists and plain objects. Other values stay. */
function floatsAs(dtype: 'f16' | 'bf16'): InputCast {
  const cast = (value: unknown): unknown => {
    if (value instanceof Tensor) return isFloating(value.dtype) ? value.to(dtype) : value;
    if (Array.isArray(value)) return value.map(cast);
    if (!isPlainObject(value)) return value;
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, cast(item)]));
  };
  return (inputs) => inputs.map(cast);
}

export function inputCastOf({ fp16, bf16, torch_autocast: autocast }: ResolvedConfig): InputCast {
  if (fp16.enabled && (fp16.auto_cast || autocast.enabled)) return floatsAs('f16');
  return bf16.enabled && autocast.enabled ? floatsAs('bf16') : asGiven;
}
