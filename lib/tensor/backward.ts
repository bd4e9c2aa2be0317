// Backward: replays the graph that the tape holds, newest node first, and says when leaves are
// done.
import * as kernels from '../runtime/kernels.generated.js';
import { promptly } from '../runtime/postponed.js';
import { requireRoots } from './backward-roots.js';
import { NodeSink } from './grad-sink.js';
import { lateGradients } from './late-gradients.js';
import { Scope, within } from './scope.js';
import { type Edge, GradFn, noGrad } from './tape.js';
import { Tensor } from './tensor.js';

let running = 0;

/** The number of the node whose backward is running, 0 when none is. */
export function runningNode(): number {
  return running;
}

/** `head` and the nodes below it, newest first, and how often each leaf is used. */
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
 * Adds the gradient of sum(roots[i] * seeds[i]) to every leaf below the roots, which may be leaves
 * themselves; a root that is named twice counts twice. A seed has its root's shape, dtype and
 * device; a missing one is 1, and its root must have one element. The graph is freed on the way.
 * Throws DS_AUTOGRAD, DS_SHAPE, DS_DTYPE, DS_DEVICE, DS_ARGUMENT.
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

/** What comes later is counted then. */
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

/** A node above the roots that hands each its seed. */
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
