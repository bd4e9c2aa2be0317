// The sink of a backward under way: gradients are written in place, and added where there are some.
import * as kernels from '../runtime/kernels.generated.js';
import { lateGradients } from './late-gradients.js';
import { held, within } from './scope.js';
import { type Edge, type GradFn, type GradSink, noGrad, type Saved } from './tape.js';
import { Tensor } from './tensor.js';

/** One for all nodes of a backward, which says whose turn it is. */
export class NodeSink implements GradSink {
  /** The node whose backward is running. */
  node!: GradFn;
  /** Leaves whose gradient of this node comes later. */
  readonly awaited = new Set<Tensor>();
  /** Gradients that are being written, outermost first. */
  private readonly open: { edge: Edge; out: Tensor }[] = [];

  needs(i: number): boolean {
    return (this.node.edges[i] as Edge).requiresGrad;
  }

  shapeOf(i: number): readonly number[] {
    return (this.node.edges[i] as Edge).shape;
  }

  write(i: number, body: (out: Tensor, accumulate: boolean) => void): void {
    const edge = this.node.edges[i] as Edge;
    if (!edge.requiresGrad) return;
    const twin = this.open.find((other) => isSameSlot(other.edge, edge));
    if (twin) {
      // One tensor is two inputs whose gradients are written at once: this one is added afterwards.
      const apart = Tensor.empty(edge.shape, edge.dtype, edge.device);
      body(apart, false);
      kernels.binary({ a: twin.out, b: apart, out: twin.out, op: 'add', accumulate: false });
      return;
    }
    const present = slotOf(edge);
    if (present && (edge.leaf || (present.exclusive && present.isContiguous))) {
      this.writeOpen(edge, present, () => body(present, true));
      return;
    }
    const fresh = freshGrad(edge);
    if (present) kernels.copy({ in: present, out: fresh });
    this.writeOpen(edge, fresh, () => body(fresh, present !== null));
    setSlot(edge, fresh);
  }

  later(
    i: number,
    reads: readonly Saved[],
    body: (out: Tensor, accumulate: boolean) => void,
  ): void {
    const { node } = this;
    const { leaf } = node.edges[i] as Edge;
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
    const { fn } = this.node.edges[i] as Edge;
    if (fn && --fn.readers === 0) fn.whenComplete?.();
  }

  give(i: number, grad: Tensor): void {
    const edge = this.node.edges[i] as Edge;
    if (!edge.requiresGrad) return;
    if (edge.fn && !slotOf(edge)) {
      setSlot(edge, grad.retain());
      return;
    }
    this.write(i, (out, accumulate) => {
      if (accumulate) kernels.binary({ a: out, b: grad, out, op: 'add', accumulate: false });
      else kernels.copy({ in: grad, out });
    });
  }
}

/** Where a leaf's first gradient is written, when somebody (the engine) has prepared a place. */
const targets = new WeakMap<Tensor, () => Tensor>();

/** `place` returns a tensor like the leaf, contiguous and held by the leaf from then on. */
export function setGradTarget(leaf: Tensor, place: (() => Tensor) | null): void {
  if (place) targets.set(leaf, place);
  else targets.delete(leaf);
}

/** A leaf's gradient has the leaf's owner; one that is on its way belongs to its node. */
function freshGrad({ leaf, shape, dtype, device }: Edge): Tensor {
  const place = leaf && targets.get(leaf);
  if (place) return held(place);
  const make = (): Tensor => Tensor.empty(shape, dtype, device);
  return leaf ? within(leaf.owner, make) : held(make);
}

/** Whether two inputs are one tensor. */
function isSameSlot(a: Edge, b: Edge): boolean {
  return a.fn ? a.fn === b.fn && a.index === b.index : a.leaf === b.leaf;
}

function slotOf(edge: Edge): Tensor | null {
  return edge.fn ? (edge.fn.grads[edge.index] ?? null) : (edge.leaf as Tensor).grad;
}

function setSlot(edge: Edge, grad: Tensor): void {
  slotOf(edge)?.release();
  if (edge.fn) edge.fn.grads[edge.index] = grad;
  else (edge.leaf as Tensor).grad = grad;
}
