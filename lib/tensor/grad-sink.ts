// The sink of a running backward: writes gradients in place, adds to existing ones, defers some of
// leaves.

import { promptly } from '../runtime/deferred-calls.js';
import * as kernels from '../runtime/kernels.generated.js';
import { required } from '../runtime/required.js';
import { held, Scope, within } from './scope.js';
import { type Edge, type GradFn, type GradSink, noGrad, type Saved } from './tape.js';
import { Tensor } from './tensor.js';

/** One sink for all nodes of a backward; `node` is the running one. */
export class NodeSink implements GradSink {
  /** The running node. */
  node!: GradFn;
  /** Leaves with a gradient from this node that is computed later. */
  readonly awaited = new Set<Tensor>();
  /** Gradients that are being written, outermost first. */
  private readonly open: { edge: Edge; out: Tensor }[] = [];

  needs(i: number): boolean {
    return required(this.node.edges[i]).requiresGrad;
  }

  shapeOf(i: number): readonly number[] {
    return required(this.node.edges[i]).shape;
  }

  write(i: number, body: (out: Tensor, accumulate: boolean) => void): void {
    const edge = required(this.node.edges[i]);
    if (!edge.requiresGrad) return;
    const twin = this.open.find((other) => isSameInput(other.edge, edge));
    if (twin) {
      // The same tensor is input twice, and both gradients are written at once: this one is added
      // afterwards.
      const apart = Tensor.empty(edge.shape, edge.dtype, edge.device);
      body(apart, false);
      kernels.binary({ a: twin.out, b: apart, out: twin.out, op: 'add', accumulate: false });
      return;
    }
    const present = gradOf(edge);
    if (present && (edge.leaf || (present.exclusive && present.isContiguous))) {
      this.writeOpen(edge, present, () => body(present, true));
      return;
    }
    const fresh = freshGrad(edge);
    if (present) kernels.copy({ in: present, out: fresh });
    this.writeOpen(edge, fresh, () => body(fresh, present !== null));
    setGrad(edge, fresh);
  }

  later(
    i: number,
    reads: readonly Saved[],
    body: (out: Tensor, accumulate: boolean) => void,
  ): void {
    const { node } = this;
    const { leaf } = required(node.edges[i]);
    const collector = lateGradients();
    if (!collector || !leaf) {
      this.write(i, body);
      return;
    }
    this.awaited.add(leaf);
    const then = new NodeSink();
    then.node = node;
    collector.add(() => noGrad(() => then.write(i, body)), [...reads, leaf]);
  }

  private writeOpen(edge: Edge, out: Tensor, body: () => void): void {
    this.open.push({ edge, out });
    try {
      body();
    } finally {
      this.open.pop();
    }
  }

  passed(i: number): void {
    const { fn } = required(this.node.edges[i]);
    if (fn && --fn.readers === 0) fn.whenComplete?.();
  }

  give(i: number, grad: Tensor): void {
    const edge = required(this.node.edges[i]);
    if (!edge.requiresGrad) return;
    if (edge.fn && !gradOf(edge)) {
      setGrad(edge, grad.retain());
      return;
    }
    this.write(i, (out, accumulate) => {
      if (accumulate) kernels.binary({ a: out, b: grad, out, op: 'add', accumulate: false });
      else kernels.copy({ in: grad, out });
    });
  }
}

/** Functions that prepare the memory of a leaf's first gradient. The engine sets them. */
const targets = new WeakMap<Tensor, () => Tensor>();

/** `allocate` returns a contiguous tensor like the leaf, which the leaf holds from then on. */
export function setGradTarget(leaf: Tensor, allocate: (() => Tensor) | null): void {
  if (allocate) targets.set(leaf, allocate);
  else targets.delete(leaf);
}

/** A leaf's gradient has the leaf's owner. A gradient in flight belongs to its node. */
function freshGrad({ leaf, shape, dtype, device }: Edge): Tensor {
  const allocate = leaf && targets.get(leaf);
  if (allocate) return held(allocate);
  const make = (): Tensor => Tensor.empty(shape, dtype, device);
  return leaf ? within(leaf.owner, make) : held(make);
}

/** Returns whether two inputs are one tensor. */
function isSameInput(a: Edge, b: Edge): boolean {
  return a.fn ? a.fn === b.fn && a.index === b.index : a.leaf === b.leaf;
}

function gradOf(edge: Edge): Tensor | null {
  return edge.fn ? (edge.fn.grads[edge.index] ?? null) : required(edge.leaf).grad;
}

function setGrad(edge: Edge, grad: Tensor): void {
  gradOf(edge)?.release();
  if (edge.fn) edge.fn.grads[edge.index] = grad;
  else required(edge.leaf).grad = grad;
}

/** A tensor, or an object that holds tensors. */
interface Held {
  /** Holds it once more. */
  retain(): unknown;
  /** Gives up one hold. */
  release(): void;
}

/**
 * The deferred gradients of one backward, for ops that declare their reads (GradSink.later). Calls
 * leaves' hooks as the backward would have.
 */
export class LateGradients {
  private readonly left: { body: () => void; reads: readonly Held[] }[] = [];

  /** @internal */
  add(body: () => void, reads: readonly Held[]): void {
    for (const each of reads) each.retain();
    this.left.push({ body, reads });
  }

  /** Computes the gradients in the order of the backward; releases the rest on failure. */
  run(): void {
    const temporaries = new Scope();
    try {
      promptly(() => {
        for (const { body } of this.left) {
          within(temporaries, body);
          temporaries.release();
        }
      });
    } finally {
      temporaries.release();
      this.drop();
    }
  }

  /** Gives them up. */
  drop(): void {
    for (const { reads } of this.left.splice(0)) {
      for (const each of reads) each.release();
    }
  }
}

let collector: LateGradients | null = null;

/** Runs `body` with a backward that defers no gradient, so its reads are released when it ends. */
export function leavingNothing(body: () => void): void {
  const outer = collector;
  collector = null;
  try {
    body();
  } finally {
    collector = outer;
  }
}

/** @internal The collector of the running backward; null if it computes gradients at once. */
export const lateGradients = (): LateGradients | null => collector;

/** Runs `body` with a backward that defers gradients of leaves to `into` where ops allow it. */
export function leavingLate<T>(into: LateGradients, body: () => T): T {
  const outer = collector;
  collector = into;
  try {
    return body();
  } finally {
    collector = outer;
  }
}
