// Clipping of gradients in a training loop without an engine. Source:
// torch.nn.utils.clip_grad_norm_, clip_grad_value_.

import { DsError } from '../errors.js';
import { argumentError, valueError } from '../runtime/input-errors.js';
import * as kernels from '../runtime/kernels.generated.js';
import { namesOf, readOptions } from '../runtime/options.js';
import { requireFinite } from '../runtime/require-number.js';
import { required } from '../runtime/required.js';
import { describe } from '../runtime/view.js';
import { cast, mul, noGrad, scope, Tensor, trainerOf, zeros } from '../tensor/index.js';

/** How clipGradNorm() treats gradients with a NaN or an infinity. */
export interface ClipGradNormOptions {
  /**
   * Throw DS_NONFINITE and leave the gradients unchanged; waits for the device. Default: false: the
   * result shows it.
   */
  errorIfNonfinite?: boolean;
}

/**
 * Scales the gradients of `parameters` in place so that their joint L2 norm is at most `maxNorm`:
 * by min(1, maxNorm / (norm + 1e-6)). Returns the norm before scaling, a scalar f32 on their
 * device, without waiting. A `maxNorm` of Infinity only measures. Call it between backward() and
 * step(); an engine clips on its own ("gradient_clipping"). Parameters without a gradient do not
 * count. Throws DS_ARGUMENT for parameters of an engine and for arguments that are not parameters,
 * DS_DEVICE if gradients are on several devices.
 */
export function clipGradNorm(
  parameters: Iterable<Tensor>,
  maxNorm: number,
  given: ClipGradNormOptions = {},
): Tensor {
  const op = 'clipGradNorm';
  const { errorIfNonfinite = false } = readOptions(op, given, namesOf.ClipGradNormOptions);
  const isLimited = maxNorm !== Number.POSITIVE_INFINITY;
  if (isLimited) requireFinite(`${op} maxNorm`, maxNorm, 0);
  const grads = gradientsOf(op, parameters);
  const device = grads[0]?.device;
  return noGrad(() =>
    scope(() => {
      if (!device) return zeros([]);
      const control = computeControl(grads, isLimited ? maxNorm : 0);
      const norm = control.select(0, 2).clone();
      if (errorIfNonfinite && control.select(0, 3).item() === 0) throw nonfiniteError(op);
      if (!isLimited) return norm;
      const factor = control.select(0, 0);
      for (const grad of grads) scaleBy(grad, factor);
      return norm;
    }),
  );
}

/**
 * Limits every element of the gradients to [-clipValue, clipValue], in place; NaN stays. Throws
 * DS_ARGUMENT as clipGradNorm().
 */
export function clipGradValue(parameters: Iterable<Tensor>, clipValue: number): void {
  const op = 'clipGradValue';
  requireFinite(`${op} clipValue`, clipValue, 0);
  const grads = gradientsOf(op, parameters);
  noGrad(() => {
    for (const grad of grads) scope(() => grad.clamp_({ min: -clipValue, max: clipValue }));
  });
}

/**
 * Returns [4] f32: the factor, 1, the norm, and whether it is finite. If the allowed norm is 0, the
 * factor is 0.
 */
function computeControl(grads: readonly Tensor[], maxNorm: number): Tensor {
  const { device } = required(grads[0]);
  const partials = zeros([grads.length], { device });
  for (const [i, grad] of grads.entries()) {
    kernels.sumOfSquares({ x: grad.contiguous(), out: partials.narrow(0, i, 1) });
  }
  const control = Tensor.empty([4], 'f32', device);
  kernels.gradientControl({ partials, control, lossScale: 1, maxNorm, skipNonfinite: false });
  if (maxNorm === 0) kernels.fill({ out: control.narrow(0, 0, 1), value: 0 });
  return control;
}

/** Multiplies `grad` by a scalar f32 in place, rounded once. */
function scaleBy(grad: Tensor, factor: Tensor): void {
  scope(() => kernels.copy({ in: mul(cast(grad, 'f32'), factor), out: grad }));
}

/**
 * Returns the gradients of the parameters. Throws DS_ARGUMENT for other values and for an engine's
 * parameters, DS_DEVICE for several devices.
 */
function gradientsOf(op: string, parameters: unknown): Tensor[] {
  const list = parameters instanceof Tensor ? [parameters] : parameters;
  if (typeof (list as Iterable<unknown> | null)?.[Symbol.iterator] !== 'function') {
    throw valueError(op, 'a list of parameters', list, 'Pass model.parameters().');
  }
  const grads: Tensor[] = [];
  for (const parameter of list as Iterable<unknown>) {
    if (!(parameter instanceof Tensor)) {
      const hint = 'Pass model.parameters(), a list without names.';
      throw valueError(op, 'parameters', parameter, hint);
    }
    if (trainerOf(parameter)) {
      const hint = 'Set "gradient_clipping" in the configuration: the engine clips.';
      throw argumentError(op, 'parameters without an engine', describe(parameter), hint);
    }
    const { grad } = parameter;
    if (grad) grads.push(grad);
  }
  const other = grads.find(({ device }) => device !== grads[0]?.device);
  if (!other) return grads;
  throw new DsError({
    code: 'DS_DEVICE',
    op,
    expected: `gradients on one device, ${grads[0]?.device.name}`,
    got: `a gradient on ${other.device.name}`,
  });
}

function nonfiniteError(op: string): DsError {
  return new DsError({
    code: 'DS_NONFINITE',
    op,
    expected: 'finite gradients',
    got: 'NaN or infinity in them',
    hint: 'Lower the learning rate, or find the layer that produces it: tensor.isfinite().',
  });
}
