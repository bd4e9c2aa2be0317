// Activation checkpointing: forward keeps only the inputs, backward runs the function again.
import { backward, type GradSink, isGradEnabled, noGrad, record, withGrad } from './autograd.js';
import { getRandomState, type RandomState, replayRandom } from './random.js';
import { scope } from './scope.js';
import { Tensor } from './tensor.js';

type Segment = (...inputs: Tensor[]) => Tensor | Tensor[];

const listOf = (result: Tensor | Tensor[]): Tensor[] => (Array.isArray(result) ? result : [result]);

/**
 * fn(...inputs), without keeping what its backward needs: that is computed again, from the same
 * random state, when the backward gets there, and freed at once. Parameters used inside get their
 * gradients from the nested backward. `fn` must be a function of its inputs and parameters alone.
 * Source: Chen et al. 2016.
 */
export function checkpoint<Result extends Tensor | Tensor[]>(
  fn: (...inputs: Tensor[]) => Result,
  ...inputs: Tensor[]
): Result {
  if (!isGradEnabled()) return scope(() => fn(...inputs));
  const at = getRandomState();
  const result = scope(() => noGrad(() => fn(...inputs)));
  const outputs = listOf(result).map((out) =>
    inputs.includes(out) || out.requiresGrad ? out.detach() : out,
  );
  const tracked = inputs.some((t) => t.requiresGrad) ? inputs : [...inputs, anchor(outputs)];
  record('checkpoint', tracked, outputs, inputs, (grads, sink) =>
    replay({ fn, inputs, at }, grads, sink),
  );
  return (Array.isArray(result) ? outputs : outputs[0]) as Result;
}

/** An empty leaf that puts the segment into the graph when only its parameters want gradients. */
function anchor(outputs: readonly Tensor[]): Tensor {
  const { dtype, device } = outputs[0] as Tensor;
  return Tensor.empty([0], dtype, device).requireGrad();
}

interface Recorded {
  fn: Segment;
  inputs: readonly Tensor[];
  at: RandomState;
}

/** Runs the segment again on leaves that stand for its inputs, and a backward through it. */
function replay(
  { fn, inputs, at }: Recorded,
  grads: readonly (Tensor | null)[],
  sink: GradSink,
): void {
  scope(() => {
    const leaves = inputs.map((t) => (t.requiresGrad ? t.detach().requireGrad() : t));
    const again = withGrad(true, () => replayRandom(at, () => scope(() => fn(...leaves))));
    const roots: Tensor[] = [];
    const seeds: Tensor[] = [];
    listOf(again).forEach((out, i) => {
      const grad = grads[i];
      if (!grad) return;
      if (out.gradFn) {
        roots.push(out);
        seeds.push(grad);
      } else if (leaves.includes(out)) sink.give(leaves.indexOf(out), grad);
    });
    if (roots.length > 0) backward(roots, seeds);
    leaves.forEach((leaf, i) => {
      if (leaf === inputs[i] || !leaf.grad) return;
      sink.give(i, leaf.grad);
      leaf.grad.release();
      leaf.grad = null;
    });
  });
}
