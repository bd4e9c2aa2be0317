// The errors of calls that an engine refuses.
import { DsError } from '../errors.js';
import type { Module } from '../nn/module.js';

/** Returns the error for a call in the wrong order, or with a wrong argument. */
export function misuseError(op: string, expected: string, got: string): DsError {
  return new DsError({ code: 'DS_AUTOGRAD', op, expected, got });
}

export const destroyedError = (op: string): DsError =>
  misuseError(op, 'a call before engine.destroy()', 'a call after engine.destroy()');

/**
 * Returns the error for a call that needs `states`, which offloadStates() has moved to host memory.
 */
export const offloadedError = (op: string, states: readonly string[]): DsError =>
  new DsError({
    code: 'DS_RELEASED',
    op,
    expected: `${states.join(', ')} on the device`,
    got: 'offloaded states',
    hint: 'Call engine.reloadStates() first.',
  });

/**
 * Returns the error for the asynchronous call `op`. destroy() during the call caused the error
 * `cause`.
 */
export const interruptedError = (op: string, cause?: unknown): DsError =>
  new DsError({
    code: 'DS_AUTOGRAD',
    op,
    expected: 'engine.destroy() after the call ends',
    got: 'engine.destroy() during the call',
    hint: `Await ${op}() before engine.destroy().`,
    cause,
  });

/** Returns the error for one backward() more than `accumulationSteps` in a step. */
export function missingStepError(accumulationSteps: number): DsError {
  return new DsError({
    code: 'DS_AUTOGRAD',
    op: 'engine.backward',
    expected: `step() after ${accumulationSteps} backward()s (gradient_accumulation_steps)`,
    got: 'another backward()',
    hint: 'Call engine.step() after every backward(); it updates at the accumulation boundary. Add several losses of one update first: backward(real.add(fake)).',
  });
}

/**
 * Returns the error for zeroGrad() between the micro-batches of a step. A loop with this call would
 * drop gradients in every step.
 */
export function lateZeroGradError(): DsError {
  return new DsError({
    code: 'DS_AUTOGRAD',
    op: 'engine.zeroGrad',
    expected: 'a call before the first step() of an accumulation, or after its last',
    got: 'a call that drops gradients of earlier micro-batches',
    hint: 'Remove the call: the step() that updates also zeroes gradients.',
  });
}

/** Returns the error for a loss that has gradients for the models `others` only. */
export function foreignLossError(others: readonly Module[]): DsError {
  const names = others.map((other) => `a ${other.constructor.name}`).join(', ');
  return new DsError({
    code: 'DS_AUTOGRAD',
    op: 'engine.backward',
    expected: "a loss computed by this engine's model",
    got: `a loss with gradients only for the model of another engine (${names})`,
    hint: 'Run forward() again, then call backward() of the same engine: both engines dropped this step.',
  });
}

/**
 * Returns the error for a backward during another one. `direct`: the other one began with
 * loss.backward().
 */
export function unfinishedError(direct: boolean): DsError {
  return new DsError({
    code: 'DS_AUTOGRAD',
    op: 'engine.backward',
    expected: 'a backward after the end of the last one',
    got: direct ? 'loss.backward() without its epilogue' : 'a backward inside another',
    hint: direct
      ? 'After loss.backward(), call engine.backwardEpilogue() or engine.step(). If the backward of another engine left these gradients, as in a GAN, drop them: engine.zeroGrad().'
      : 'Call it after the other backward() has returned.',
  });
}

/** Returns the error for loss.backward() without the loss scale. */
export function unscaledError(lossScale: number): DsError {
  return new DsError({
    code: 'DS_AUTOGRAD',
    op: 'loss.backward',
    expected: `a loss times the loss scale, ${lossScale}`,
    got: 'an unscaled loss',
    hint: 'Write engine.scale(loss).backward(), or engine.backward(loss).',
  });
}

/**
 * Returns the error for micro-batches of one step with the different factors `first` and `second`.
 */
export function mixedScalesError(first: number, second: number): DsError {
  return new DsError({
    code: 'DS_AUTOGRAD',
    op: 'engine.backward',
    expected: `gradients with the factor ${first} of the earlier micro-batches of this step`,
    got: `the factor ${second}`,
    hint: 'Use either engine.backward() or loss.backward() for all micro-batches of a step.',
  });
}
