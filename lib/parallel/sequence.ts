// Sequence parallelism: between cut layers each rank has some of the tokens. Source: Korthikanti et
// al. 2022 (Megatron-LM).
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

/** Tokens are the second dim of activations: [B, T, C]. */
const TOKENS = 1;

/** What gathering gave for a tensor: layers that read the same one share its one exchange. */
const gathered = new WeakMap<Tensor, { tracked: boolean; whole: Tensor }>();

function tokensOf(group: ProcessGroup, count: number): SharedDim {
  return { group, dim: TOKENS, sizes: new Array<number>(group.size).fill(count) };
}

/**
 * Activations between cut layers are shared out by tokens wherever shareTokens() says so, and whole
 * elsewhere: in inference. The forward's exchanges are a gathering and a sum of which each rank
 * keeps its part, together what the one sum was; the backward's are the reverse, and a second
 * gathering for each weight that learns.
 */
export function tokenStream(group: ProcessGroup): Stream {
  const whole = wholeStream(group);
  const sharedOf = (x: Tensor): SharedDim => tokensOf(group, x.size(TOKENS));
  // Linear layers keep the part and gather it again for the gradient of their weight, while they
  // compute that of their input.
  const gather = Object.assign((x: Tensor): Tensor => gatherForAll(x, sharedOf(x)), {
    begin: (x: Tensor): (() => Tensor) => beginWhole(x, sharedOf(x)),
  });
  const kept = (whole: Tensor, part: Tensor): Tensor => recomputable(whole, gather, part);
  const all = (x: Tensor): Tensor => {
    const tracked = x.requiresGrad && isGradEnabled();
    const known = gathered.get(x);
    if (known && known.tracked === tracked && !known.whole.isDisposed) return known.whole;
    const out = kept(gather(x), x);
    if (!tracked || x.gradFn) gathered.set(x, { tracked, whole: out });
    return out;
  };
  const isShared = (x: Tensor): boolean => {
    if (sharedTokens()) return true;
    if (x.requiresGrad && isGradEnabled()) throw outside();
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
      return counts ? out : kept(withoutGradient(out), x);
    },
    leave,
    leaveLinear(x, weight, bias) {
      if (!sharedTokens()) return whole.leaveLinear(x, weight, bias);
      const sum = leave(linear(x, weight));
      return bias ? sum.add(bias) : sum;
    },
  };
}

function outside(): DsError {
  return new DsError({
    code: 'DS_ARGUMENT',
    op: 'sequence parallelism',
    expected: 'layers called by the model whose plan says where tokens are shared out',
    got: 'a cut layer by itself, or in a pipeline',
    hint: 'Train without sequence parallelism there.',
  });
}

function sharedTwice(): DsError {
  return new DsError({
    code: 'DS_ARGUMENT',
    op: 'sequence parallelism',
    expected: 'tokens that are shared out once',
    got: 'a model cut with sequenceParallel whose tokens the axis sp shares out as well',
    hint: 'Cut it without sequenceParallel, or set sequence_parallel_size to 1.',
  });
}

/** What replaces a module's forward. */
type Around = (forward: (...inputs: unknown[]) => unknown, inputs: unknown[]) => unknown;

function wrap(module: Module, around: Around): void {
  const own = module as { forward: (...inputs: unknown[]) => unknown };
  const forward = own.forward.bind(module);
  own.forward = (...inputs) => around(forward, inputs);
}

/** Whether a call trains, or may: what only infers keeps its activations whole. */
const learns = (module: Module): boolean => module.training || isGradEnabled();

/**
 * From now on the activations inside `body`, from its block `first` on, are shared out by tokens:
 * body takes tokens [B, T] and gives hidden states [B, T, C], whole as before; `first` takes [B, T,
 * C]. Calls without gradients in eval mode stay as they are.
 */
export function shareTokens(body: Module, first: Module, group: ProcessGroup): void {
  wrap(body, (forward, inputs) => {
    if (!learns(body)) return forward(...inputs);
    if (sharedTokens()) throw sharedTwice();
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
  const whole = tokens instanceof Tensor && tokens.ndim >= 2 ? tokens.size(TOKENS) : 0;
  const count = whole / group.size;
  if (whole > 0 && Number.isInteger(count)) return { first: group.rank * count, count, whole };
  throw new DsError({
    code: 'DS_SHAPE',
    op: `sequence parallelism of ${body.constructor.name}`,
    expected: `tokens [B, T] with T a multiple of ${group.size}, the ranks that share them`,
    got: tokens instanceof Tensor ? `[${tokens.shape.join(', ')}]` : typeof tokens,
    hint: 'Pad the rows, or call the model in eval mode without gradients.',
  });
}
