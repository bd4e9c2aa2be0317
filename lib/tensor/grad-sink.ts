// The sink of a running backward: writes gradients in place, adds to existing gradients, and defers
// gradients of leaves on request.

import { promptly } from '../runtime/deferred-calls.js';
import * as kernels from '../runtime/kernels.generated.js';
import { required } from '../runtime/required.js';
import { held, Scope, within } from './scope.js';
import { type Edge, type GradFn, type GradSink, noGrad, type Saved } from './tape.js';
import { Tensor } from './tensor.js';

/** The destination of gradients in one backward; it serves all nodes, one after the other. */
export class NodeSink implements GradSink {
  /** The running node. */
  node!: GradFn;
  /** Leaves with a deferred gradient from the running node. */
  readonly awaited = new Set<Tensor>();
  /** Gradients that are being written, outermost first. */
  private readonly openWrites: { edge: Edge; out: Tensor }[] = [];

  needs(i: number): boolean {
    return required(this.node.edges[i]).requiresGrad;
  }

  shapeOf(i: number): readonly number[] {
    return required(this.node.edges[i]).shape;
  }

  write(i: number, body: (out: Tensor, accumulate: boolean) => void): void {
    const edge = required(this.node.edges[i]);
    if (!edge.requiresGrad) return;
    const twin = this.openWrites.find((other) => isSameInput(other.edge, edge));
    if (twin) {
      // A tensor is input twice, and the write of its other gradient is running: this gradient goes
      // to new memory, and is added afterwards.
      const second = Tensor.empty(edge.shape, edge.dtype, edge.device);
      body(second, false);
      kernels.binary({ a: twin.out, b: second, out: twin.out, op: 'add', accumulate: false });
      return;
    }
    const existing = gradOf(edge);
    if (existing && (edge.leaf || (existing.isExclusive && existing.isContiguous))) {
      this.writeOpen(edge, existing, () => body(existing, true));
      return;
    }
    const created = createGrad(edge);
    if (existing) kernels.copy({ in: existing, out: created });
    this.writeOpen(edge, created, () => body(created, existing !== null));
    setGrad(edge, created);
  }

  writeDeferred(
    i: number,
    reads: readonly Saved[],
    body: (out: Tensor, accumulate: boolean) => void,
  ): void {
    const { node } = this;
    const { leaf } = required(node.edges[i]);
    const collector = activeCollector();
    if (!collector || !leaf) {
      this.write(i, body);
      return;
    }
    this.awaited.add(leaf);
    const sink = new NodeSink();
    sink.node = node;
    collector.add(() => noGrad(() => sink.write(i, body)), [...reads, leaf]);
  }

  private writeOpen(edge: Edge, out: Tensor, body: () => void): void {
    this.openWrites.push({ edge, out });
    try {
      body();
    } finally {
      this.openWrites.pop();
    }
  }

  markComplete(i: number): void {
    const { fn } = required(this.node.edges[i]);
    if (fn && --fn.readers === 0) fn.whenComplete?.();
  }

  addGrad(i: number, grad: Tensor): void {
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

/**
 * Sets where backward writes the first gradient of `leaf`. `allocate` returns a contiguous tensor
 * of the leaf's shape and dtype, which the leaf then holds; null restores new memory.
 */
export function setGradTarget(leaf: Tensor, allocate: (() => Tensor) | null): void {
  if (allocate) targets.set(leaf, allocate);
  else targets.delete(leaf);
}

/** Allocates a gradient. A leaf's gradient belongs to the leaf's owner, any other to its node. */
function createGrad({ leaf, shape, dtype, device }: Edge): Tensor {
  const allocate = leaf && targets.get(leaf);
  if (allocate) return held(allocate);
  const allocateGrad = (): Tensor => Tensor.empty(shape, dtype, device);
  return leaf ? within(leaf.owner, allocateGrad) : held(allocateGrad);
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

/** What a deferred gradient reads: a tensor, or an object with tensors. */
interface Retained {
  /** Adds a reference. */
  retain(): unknown;
  /** Removes a reference. */
  release(): void;
}

/**
 * The gradients that one backward deferred (GradSink.writeDeferred). run() computes them, and calls
 * the leaves' hooks in the order of the backward.
 */
export class DeferredGradients {
  private readonly pending: { body: () => void; reads: readonly Retained[] }[] = [];

  /** @internal */
  add(body: () => void, reads: readonly Retained[]): void {
    for (const each of reads) each.retain();
    this.pending.push({ body, reads });
  }

  /** Computes the gradients in the order of the backward. On failure, releases all others. */
  run(): void {
    const temporaries = new Scope();
    try {
      promptly(() => {
        for (const { body } of this.pending) {
          within(temporaries, body);
          temporaries.release();
        }
      });
    } finally {
      temporaries.release();
      this.drop();
    }
  }

  /** Releases the tensors of all pending gradients without computing them. */
  drop(): void {
    for (const { reads } of this.pending.splice(0)) {
      for (const each of reads) each.release();
    }
  }
}

let collector: DeferredGradients | null = null;

/** Runs `body`. Its backward defers no gradient, and so releases its saved tensors at its end. */
export function withoutDeferral(body: () => void): void {
  const outer = collector;
  collector = null;
  try {
    body();
  } finally {
    collector = outer;
  }
}

/** @internal Returns the collector of deferred gradients; null if backward defers none. */
export const activeCollector = (): DeferredGradients | null => collector;

/** Runs `body`. Its backward defers gradients of leaves to `into` if the op permits it. */
export function deferGradients<T>(into: DeferredGradients, body: () => T): T {
  const outer = collector;
  collector = into;
  try {
    return body();
  } finally {
    collector = outer;
  }
}
