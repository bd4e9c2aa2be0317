// Backward: replays the tape's graph, newest node first, and reports when leaves are complete.
import * as kernels from '../runtime/kernels.generated.js';
import { promptly } from '../runtime/postponed.js';
import { requireRoots } from './backward-roots.js';
import { NodeSink } from './grad-sink.js';
import { lateGradients } from './late-gradients.js';
import { Scope, within } from './scope.js';
import { type Edge, GradFn, noGrad } from './tape.js';
import { Tensor } from './tensor.js';

let running = 0;

/** The number of the node that runs its backward, or 0. */
export function runningNode(): number {
  return running;
}

/** `head` and the nodes below it, newest first, and the number of uses of each leaf. */
function collect(head: GradFn): { nodes: GradFn[]; uses: Map<Tensor, number> } {
  const nodes = new Set<GradFn>();
  const uses = new Map<Tensor, number>();
  const stack: GradFn[] = [];
  const reach = (fn: GradFn | null): void => {
    if (!fn || nodes.has(fn)) return;
    nodes.add(fn);
    stack.push(fn);
  };
  reach(head);
  for (let node = stack.pop(); node; node = stack.pop()) {
    for (const { fn, leaf } of node.edges) {
      reach(fn);
      if (leaf) uses.set(leaf, (uses.get(leaf) ?? 0) + 1);
    }
  }
  return { nodes: [...nodes].sort((a, b) => b.sequence - a.sequence), uses };
}

/**
 * Adds the gradient of sum(roots[i] * seeds[i]) to every leaf below the roots. Roots may be leaves;
 * a repeated root counts once per occurrence. A seed has its root's shape, dtype and device. A
 * missing seed is 1, and its root must have one element. Backward frees the graph. Throws
 * DS_AUTOGRAD, DS_SHAPE, DS_DTYPE, DS_DEVICE, DS_ARGUMENT.
 */
export function backward(
  roots: Tensor | readonly Tensor[],
  seeds: Tensor | readonly (Tensor | null)[] = [],
): void {
  const head = headOf(
    roots instanceof Tensor ? [roots] : roots,
    seeds instanceof Tensor ? [seeds] : seeds,
  );
  promptly(() => noGrad(() => propagate(head)));
}

/** Runs `head` and the nodes below it. */
function propagate(head: GradFn): void {
  const { nodes, uses } = collect(head);
  const sink = new NodeSink();
  const temporaries = new Scope();
  const outer = running;
  try {
    for (const node of nodes) {
      const { edges } = node;
      sink.node = node;
      running = node.sequence;
      const reached = node === head || node.grads.some((g) => g !== null);
      if (reached) within(temporaries, () => node.run(sink));
      else node.release();
      temporaries.release();
      countUses(edges, uses, sink.awaited);
    }
  } finally {
    running = outer;
    temporaries.release();
  }
}

/** Skips awaited leaves: their late gradients count later. */
function countUses(edges: readonly Edge[], uses: Map<Tensor, number>, awaited: Set<Tensor>): void {
  for (const { leaf } of edges) {
    if (!leaf) continue;
    if (awaited.has(leaf)) lateGradients()?.add(() => countUse(leaf, uses), [leaf]);
    else countUse(leaf, uses);
  }
  awaited.clear();
}

/** Calls the leaf's hook when its last use has been passed. */
function countUse(leaf: Tensor, uses: Map<Tensor, number>): void {
  const left = (uses.get(leaf) ?? 0) - 1;
  uses.set(leaf, left);
  if (left === 0) leaf.onGradReady?.(leaf);
}

/** A node above the roots that gives each root its seed. */
function headOf(roots: readonly Tensor[], seeds: readonly (Tensor | null)[]): GradFn {
  requireRoots(roots, seeds);
  return new GradFn('backward', roots, 0, [], (_, sink) => {
    for (const [i, root] of roots.entries()) sink.give(i, seeds[i] ?? ones(root));
  });
}

function ones(like: Tensor): Tensor {
  const out = Tensor.emptyLike(like);
  kernels.fill({ out, value: 1 });
  return out;
}
