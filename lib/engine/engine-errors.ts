// The errors of wrong calls of the engine, and of a step that cannot go on.
import { DsError } from '../errors.js';
import type { Module } from '../nn/module.js';
import { formatValue } from '../runtime/format-value.js';
import { refusedValue } from '../runtime/refused.js';
import { Tensor } from '../tensor/index.js';
import type { StepDecision, Uneven } from './step/step-control.js';

/** Throws DS_ARGUMENT unless `loss` is a tensor, DS_SHAPE unless it is one f32 element. */
export function requireLoss(op: string, loss: Tensor): void {
  if (!(loss instanceof Tensor)) {
    throw new DsError({
      code: 'DS_ARGUMENT',
      op,
      expected: 'a loss: the tensor that forward() has computed',
      got: formatValue(loss),
      hint: 'Where the model returns more than its loss, pass the loss alone.',
    });
  }
  if (loss.numel === 1 && loss.dtype === 'f32') return;
  throw new DsError({
    code: 'DS_SHAPE',
    op,
    expected: 'a loss of one f32 element',
    got: `[${loss.shape.join(', ')}] ${loss.dtype}`,
    hint: "Reduce it first, for example with .mean(), and cast it with .to('f32').",
  });
}

/** Throws DS_ARGUMENT unless a loss can be multiplied with `factor` and divided by it again. */
export function requireFactor(op: string, factor: number): void {
  if (Number.isFinite(factor) && factor > 0) return;
  throw refusedValue(op, 'a finite number above 0', factor);
}

/** A call in the wrong place or with a wrong argument. */
export function misuse(op: string, expected: string, got: string): DsError {
  return new DsError({ code: 'DS_AUTOGRAD', op, expected, got });
}

/** A call after destroy(). */
export const destroyed = (op: string): DsError =>
  misuse(op, 'a call before engine.destroy()', 'one after it');

/** destroy() while the call `op`, which `cause` then ended, used the state of the engine. */
export const interrupted = (op: string, cause?: unknown): DsError =>
  new DsError({
    code: 'DS_AUTOGRAD',
    op,
    expected: 'engine.destroy() after it has ended',
    got: 'one before',
    hint: `Await ${op}() before engine.destroy().`,
    cause,
  });

/** Another backward where `accumulationSteps` of them have made a step. */
export function stepMissing(accumulationSteps: number): DsError {
  return new DsError({
    code: 'DS_AUTOGRAD',
    op: 'engine.backward',
    expected: `step() after ${accumulationSteps} backward()s (gradient_accumulation_steps)`,
    got: 'another backward()',
    hint: 'Call engine.step() after every backward(); it updates at the accumulation boundary. Losses of one update, as the two of a discriminator, are added first: backward(real.add(fake)).',
  });
}

/** zeroGrad() between the micro-batches of a step, which a loop that makes it never completes. */
export function zeroedBetween(): DsError {
  return new DsError({
    code: 'DS_AUTOGRAD',
    op: 'engine.zeroGrad',
    expected: 'a call before the first step() of an accumulation, or after its last',
    got: 'one that drops gradients of micro-batches whose step() has been called',
    hint: 'Leave it out: the step() that updates does it.',
  });
}

/** A loss that nothing of this engine has a part in, but the models of `others` have. */
export function foreign(others: readonly Module[]): DsError {
  const names = others.map((other) => `a ${other.constructor.name}`).join(', ');
  return new DsError({
    code: 'DS_AUTOGRAD',
    op: 'engine.backward',
    expected: "a loss that this engine's model has a part in",
    got: `one that gives gradients to another engine's alone (${names})`,
    hint: 'Call backward() of the engine whose forward() made it, after another forward(): the steps of both have started afresh.',
  });
}

/** A backward while another is under way. */
export function unfinished(direct: boolean): DsError {
  return new DsError({
    code: 'DS_AUTOGRAD',
    op: 'engine.backward',
    expected: 'the last backward to have ended',
    got: direct ? 'loss.backward() without its epilogue' : 'a backward inside another',
    hint: 'After loss.backward(), call engine.backwardEpilogue() or engine.step().',
  });
}

/** loss.backward() with a loss scale that nobody has applied. */
export function unscaled(lossScale: number): DsError {
  return new DsError({
    code: 'DS_AUTOGRAD',
    op: 'loss.backward',
    expected: `a loss times the loss scale, ${lossScale}`,
    got: 'an unscaled one',
    hint: 'Write engine.scale(loss).backward(), or engine.backward(loss).',
  });
}

/** Gradients of one step that carry different factors. */
export function mixedScales(first: number, second: number): DsError {
  return new DsError({
    code: 'DS_AUTOGRAD',
    op: 'engine.backward',
    expected: `gradients that carry the factor ${first}, as those before it in this step`,
    got: `the factor ${second}`,
    hint: 'Use either engine.backward() or loss.backward() for all micro-batches of a step.',
  });
}

/** A batch size that some ranks have changed, and others have not. */
export function uneven({ first, other }: Uneven): DsError {
  return new DsError({
    code: 'DS_ARGUMENT',
    op: 'engine.step',
    expected: `as many micro-batches in a step on every rank: ${first.micros} as on rank ${first.rank}`,
    got: `${other.micros} on rank ${other.rank}`,
    hint: 'Call engine.setTrainBatchSize() on all ranks, with the same number, before the same step.',
  });
}

/** The loss of global step `step` was not finite. */
export function nonfinite(step: number, decision: StepDecision): DsError {
  return new DsError({
    code: 'DS_NONFINITE',
    op: `step ${step}`,
    expected: 'a finite loss',
    got: `${decision.loss}`,
    hint: decision.applied
      ? 'The weights may be damaged: resume from the last checkpoint with a smaller learning rate.'
      : 'The update was skipped: it changed no weight. Check the data, or lower the learning rate; where weights are NaN already, load a checkpoint.',
  });
}
