// Backward: replays the tape's graph, newest node first, and reports when leaves are complete.

import { DsError, type DsErrorCode } from '../errors.js';
import { promptly } from '../runtime/deferred-calls.js';
import { valueError } from '../runtime/input-errors.js';
import * as kernels from '../runtime/kernels.generated.js';
import { describe } from '../runtime/view.js';
import { activeCollector, NodeSink } from './grad-sink.js';
import { Scope, within } from './scope.js';
import { type Edge, GradFn, noGrad } from './tape.js';
import { Tensor } from './tensor.js';

let runningSequence = 0;

/** For each running backward, outermost first: the number of open uses of each leaf. */
const openUseCounts: Map<Tensor, number>[] = [];

/** Returns the sequence number of the node that backward computes now; 0 outside of a backward. */
export function runningSequenceNumber(): number {
  return runningSequence;
}

/** Returns `head` and the nodes below it, newest first, and the number of uses of each leaf. */
function collectNodes(head: GradFn): { nodes: GradFn[]; uses: Map<Tensor, number> } {
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
  const head = createHead(
    roots instanceof Tensor ? [roots] : roots,
    seeds instanceof Tensor ? [seeds] : seeds,
  );
  promptly(() => noGrad(() => runGraph(head)));
}

/** Runs the backward of `head` and of all nodes below it, newest first. */
function runGraph(head: GradFn): void {
  const { nodes, uses } = collectNodes(head);
  const sink = new NodeSink();
  const temporaries = new Scope();
  const outer = runningSequence;
  openUseCounts.push(uses);
  try {
    for (const node of nodes) {
      const { edges } = node;
      sink.node = node;
      runningSequence = node.sequence;
      const reached = node === head || node.grads.some((g) => g !== null);
      if (reached) within(temporaries, () => node.run(sink));
      else node.release();
      temporaries.release();
      countUses(edges, uses, sink.awaited);
    }
  } finally {
    runningSequence = outer;
    openUseCounts.pop();
    temporaries.release();
  }
}

/**
 * Counts the uses of the leaves of a finished node. A deferred gradient of an awaited leaf counts
 * when it is computed.
 */
function countUses(edges: readonly Edge[], uses: Map<Tensor, number>, awaited: Set<Tensor>): void {
  for (const { leaf } of edges) {
    if (!leaf) continue;
    if (awaited.has(leaf)) activeCollector()?.add(() => countUse(leaf, uses), [leaf]);
    else countUse(leaf, uses);
  }
  awaited.clear();
}

/**
 * Counts one use of `leaf`. After the last use, calls the leaf's hook, or stores the leaf for the
 * caller of holdHooks().
 */
function countUse(leaf: Tensor, uses: Map<Tensor, number>): void {
  const left = (uses.get(leaf) ?? 0) - 1;
  uses.set(leaf, left);
  if (left > 0) return;
  if (heldHooks) heldHooks.add(leaf);
  else callHook(leaf);
}

/**
 * Calls the leaf's hook, except while a running backward has an open use of the leaf: that backward
 * calls the hook after the last use.
 */
export function callHook(leaf: Tensor): void {
  const isUsed = openUseCounts.some((uses) => (uses.get(leaf) ?? 0) > 0);
  if (!isUsed) leaf.onGradReady?.(leaf);
}

/**
 * Complete leaves whose hooks the caller of holdHooks() calls; null: backward calls them itself.
 */
let heldHooks: Set<Tensor> | null = null;

/** Runs `body`, whose backwards add complete leaves to `into` and call no hooks. */
export function holdHooks(into: Set<Tensor>, body: () => void): void {
  const outer = heldHooks;
  heldHooks = into;
  try {
    body();
  } finally {
    heldHooks = outer;
  }
}

/** Creates a node above the roots. Its backward gives each root its seed as the gradient. */
function createHead(roots: readonly Tensor[], seeds: readonly (Tensor | null)[]): GradFn {
  requireRoots(roots, seeds);
  return new GradFn('backward', roots, 0, [], (_, sink) => {
    for (const [i, root] of roots.entries()) sink.addGrad(i, seeds[i] ?? onesLike(root));
  });
}

function onesLike(like: Tensor): Tensor {
  const out = Tensor.emptyLike(like);
  kernels.fill({ out, value: 1 });
  return out;
}

/** Throws if the roots or seeds of a backward() are invalid: see there. */
function requireRoots(roots: readonly Tensor[], seeds: readonly (Tensor | null)[]): void {
  requireLists(roots, seeds);
  for (const [i, root] of roots.entries()) requireSeed(root, seeds[i] ?? null);
}

function requireLists(roots: unknown, seeds: unknown): void {
  const isRoot = (item: unknown): boolean => item instanceof Tensor;
  const isSeed = (item: unknown): boolean => item == null || item instanceof Tensor;
  const isList = Array.isArray(roots) && roots.length > 0 && roots.every(isRoot);
  if (!isList) throw misuseError('a tensor, or a list of tensors', roots, 'Call loss.backward().');
  if (Array.isArray(seeds) && seeds.every(isSeed)) {
    if (seeds.length <= roots.length) return;
    throw misuseError(`at most ${roots.length} seeds`, seeds, 'A seed belongs to a root.');
  }
  throw misuseError('a tensor like the root as its seed', seeds, 'For a factor, scale the loss.');
}

function misuseError(expected: string, got: unknown, hint: string): DsError {
  return valueError('backward', expected, got, hint);
}

function requireSeed(root: Tensor, seed: Tensor | null): void {
  const fail = (code: DsErrorCode, expected: string, got: string, hint = ''): never => {
    throw new DsError({ code, op: 'backward', expected, got, hint });
  };
  const { device } = root;
  if (!root.requiresGrad) {
    const hint =
      'Call requireGrad() on the trained tensors, and compute the loss without noGrad() and detach().';
    fail(
      'DS_AUTOGRAD',
      'a tensor computed from one that requires a gradient',
      describe(root),
      hint,
    );
  }
  if (!seed) {
    if (root.numel === 1) return;
    fail(
      'DS_AUTOGRAD',
      'a scalar loss or a seed',
      describe(root),
      'Reduce it with mean() or sum().',
    );
    return;
  }
  if (!sameSizes(root.shape, seed.shape)) {
    fail('DS_SHAPE', `a seed like its root, ${describe(root)}`, describe(seed));
  }
  if (root.dtype !== seed.dtype) {
    fail(
      'DS_DTYPE',
      `a seed like its root, ${describe(root)}`,
      describe(seed),
      `.to('${root.dtype}')`,
    );
  }
  if (device === seed.device) return;
  const { name } = device;
  fail(
    'DS_DEVICE',
    `a seed on its root's ${name}`,
    `a seed on ${seed.device.name}`,
    `.to('${name}')`,
  );
}

const sameSizes = (a: readonly number[], b: readonly number[]): boolean =>
  a.length === b.length && a.every((size, d) => size === b[d]);
