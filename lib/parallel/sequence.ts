// Megatron sequence parallelism: outside of the split layers, each rank has some of the tokens.
// Source: Korthikanti et al. 2022 (Megatron-LM).
import type { ProcessGroup } from '../comm/index.js';
import { DsError } from '../errors.js';
import type { Module } from '../nn/module.js';
import {
  type DimShare,
  isGradEnabled,
  linear,
  recomputable,
  sharedTokens,
  sharingTokens,
  Tensor,
} from '../tensor/index.js';
import {
  beginLate,
  beginWhole,
  gatherForAll,
  gatherShared,
  scatterShared,
  sumShared,
  withoutGradient,
} from './collectives.js';
import type { SharedDim } from './exchanges.js';
import { type Stream, wholeStream } from './stream.js';

/** The dim of the tokens in activations [B, T, C]. */
const TOKENS = 1;

/** Gathered tensors by their parts: layers that read the same part share one gather. */
const gathered = new WeakMap<Tensor, { tracked: boolean; whole: Tensor }>();

function tokensOf(group: ProcessGroup, count: number): SharedDim {
  return { group, dim: TOKENS, sizes: new Array<number>(group.size).fill(count) };
}

/**
 * Returns a layout of activations outside of split layers. Inside the call of splitTokens()'s body
 * they are split by tokens; elsewhere (inference) they are whole. Instead of one sum, the forward
 * has a gather and a reduce-scatter. The backward has the reverse, and a second gather for each
 * trained weight.
 */
export function tokenStream(group: ProcessGroup): Stream {
  const whole = wholeStream(group);
  const sharedOf = (x: Tensor): SharedDim => tokensOf(group, x.size(TOKENS));
  // A linear layer keeps only this rank's part of its input. For the gradient of its weight it
  // gathers the input again, overlapped with the gradient of the input.
  const gather = Object.assign((x: Tensor): Tensor => gatherForAll(x, sharedOf(x)), {
    begin: (x: Tensor): (() => Tensor) => beginWhole(x, sharedOf(x)),
  });
  const keepPart = (whole: Tensor, part: Tensor): Tensor => recomputable(whole, gather, part);
  const all = (x: Tensor): Tensor => {
    const tracked = x.requiresGrad && isGradEnabled();
    const known = gathered.get(x);
    if (known && known.tracked === tracked && !known.whole.isDisposed) return known.whole;
    const out = keepPart(gather(x), x);
    if (!tracked || x.gradFn) gathered.set(x, { tracked, whole: out });
    return out;
  };
  const isShared = (x: Tensor): boolean => {
    if (sharedTokens()) return true;
    if (x.requiresGrad && isGradEnabled()) throw outsideModelError();
    return false;
  };
  const leave = (x: Tensor): Tensor =>
    sharedTokens() ? sumShared(x, tokensOf(group, x.size(TOKENS) / group.size)) : whole.leave(x);
  return {
    isShared: true,
    enter: (x) => (isShared(x) ? all(x) : whole.enter(x)),
    enterCopies(x, counts) {
      if (!isShared(x)) return whole.enterCopies(x, counts);
      const out = all(x);
      beginLate(out);
      return counts ? out : keepPart(withoutGradient(out), x);
    },
    leave,
    leaveLinear(x, weight, bias) {
      if (!sharedTokens()) return whole.leaveLinear(x, weight, bias);
      const sum = leave(linear(x, weight));
      return bias ? sum.add(bias) : sum;
    },
  };
}

function outsideModelError(): DsError {
  return new DsError({
    code: 'DS_ARGUMENT',
    op: 'sequence parallelism',
    expected: 'split layers inside the call of their model',
    got: 'a split layer called directly, or in a pipeline',
    hint: 'Train without sequence parallelism there.',
  });
}

function sharedTwiceError(): DsError {
  return new DsError({
    code: 'DS_ARGUMENT',
    op: 'sequence parallelism',
    expected: 'one split of the tokens',
    got: 'a model with sequenceParallel, and the axis sp',
    hint: 'Parallelize it without sequenceParallel, or set sequence_parallel_size to 1.',
  });
}

/** Replaces the forward of a module: receives the original forward and the inputs. */
type Around = (forward: (...inputs: unknown[]) => unknown, inputs: unknown[]) => unknown;

function wrap(module: Module, around: Around): void {
  const ownModule = module as { forward: (...inputs: unknown[]) => unknown };
  const forward = ownModule.forward.bind(module);
  ownModule.forward = (...inputs) => around(forward, inputs);
}

/** Returns whether a call may train. Other calls keep whole activations. */
const mayTrain = (module: Module): boolean => module.training || isGradEnabled();

/**
 * Makes `body` split its activations by tokens from its module `first` on. `body` maps tokens [B,
 * T] to hidden states [B, T, C], both whole as before. The first input of `first` is [B, T, C].
 * Calls in eval mode without gradients do not change.
 */
export function splitTokens(body: Module, first: Module, group: ProcessGroup): void {
  wrap(body, (forward, inputs) => {
    if (!mayTrain(body)) return forward(...inputs);
    if (sharedTokens()) throw sharedTwiceError();
    const [tokens] = inputs as [Tensor];
    const share = shareOf(body, tokens, group);
    const out = sharingTokens(share, () => forward(...inputs)) as Tensor;
    return gatherShared(out, tokensOf(group, share.count));
  });
  wrap(first, (forward, inputs) => {
    const share = sharedTokens();
    if (!share) return forward(...inputs);
    const [x, ...rest] = inputs as [Tensor];
    return forward(scatterShared(x, tokensOf(group, share.count)), ...rest);
  });
}

function shareOf(body: Module, tokens: unknown, group: ProcessGroup): DimShare {
  const totalTokens = tokens instanceof Tensor && tokens.ndim >= 2 ? tokens.size(TOKENS) : 0;
  const count = totalTokens / group.size;
  if (totalTokens > 0 && Number.isInteger(count))
    return { first: group.rank * count, count, whole: totalTokens };
  throw new DsError({
    code: 'DS_SHAPE',
    op: `sequence parallelism of ${body.constructor.name}`,
    expected: `tokens [B, T] with T a multiple of ${group.size}, the ranks that share them`,
    got: tokens instanceof Tensor ? `[${tokens.shape.join(', ')}]` : typeof tokens,
    hint: 'Pad the rows, or call the model in eval mode without gradients.',
  });
}
