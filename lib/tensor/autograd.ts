// The tape: ops record a backward function; backward() replays the graph, newest first.

import { DsError } from '../errors.js';
import type { Device } from '../runtime/device.js';
import type { DType } from '../runtime/dtype.js';
import * as kernels from '../runtime/kernels.generated.js';
import { promptly } from '../runtime/postponed.js';
import { requireType } from '../runtime/require-type.js';
import { requireRoots } from './backward-roots.js';
import { lateGradients } from './late-gradients.js';
import { currentScope, held, Scope, within } from './scope.js';
import { Tensor } from './tensor.js';

/**
 * Computes input gradients from output gradients. `grads[i]` is the gradient of output i, null when
 * none reached it; it is borrowed. Results go through the sink.
 */
export type Backward = (grads: readonly (Tensor | null)[], sink: GradSink) => void;

let sequence = 0;
let running = 0;
let again = false;
let enabled = true;

/** The number of the node recorded last; numbers grow. */
export function newestNode(): number {
  return sequence;
}

/** The number of the node whose backward is running, 0 when none is. */
export function runningNode(): number {
  return running;
}

/** Runs `body`, which computes for a backward what the forward has computed before. */
export function recomputing<T>(body: () => T): T {
  const outer = again;
  again = true;
  try {
    return body();
  } finally {
    again = outer;
  }
}

export function isRecomputing(): boolean {
  return again;
}

/** Whether ops are recorded for backward; false inside noGrad(). */
export function isGradEnabled(): boolean {
  return enabled;
}

/** Runs `body` without recording. */
export function noGrad<T>(body: () => T): T {
  requireType('noGrad', body, 'function');
  return withGrad(false, body);
}

/** Runs `body` with recording switched on or off. */
export function withGrad<T>(on: boolean, body: () => T): T {
  requireType('withGrad', body, 'function');
  const outer = enabled;
  enabled = on;
  try {
    return body();
  } finally {
    enabled = outer;
  }
}

/** What a node holds until its backward has run: a tensor, or what stands for tensors. */
export interface Saved {
  /** As of Tensor; absent where nobody can change it. */
  readonly changedAt?: number;
  /** Holds it for one node more. */
  retain(): unknown;
  /** Gives up one hold. */
  release(): void;
}

/** What a node remembers of an input: where its gradient goes, not its values. */
interface Edge {
  readonly shape: readonly number[];
  readonly dtype: DType;
  readonly device: Device;
  readonly requiresGrad: boolean;
  readonly fn: GradFn | null;
  readonly index: number;
  /** The input itself when it is a leaf that wants a gradient. */
  readonly leaf: Tensor | null;
}

/** The tape alone sets gradFn. */
const nodeOf = ({ gradFn }: Tensor): GradFn | null => gradFn as GradFn | null;

function edgeTo(input: Tensor): Edge {
  const { shape, dtype, device, requiresGrad, gradIndex: index } = input;
  const fn = nodeOf(input);
  const leaf = requiresGrad && !fn ? input.retain() : null;
  if (fn) fn.readers++;
  return { shape, dtype, device, requiresGrad, fn, index, leaf };
}

function edgesTo(inputs: readonly Tensor[]): Edge[] {
  const edges = new Array<Edge>(inputs.length);
  for (let i = 0; i < inputs.length; ++i) edges[i] = edgeTo(inputs[i] as Tensor);
  return edges;
}

function noGrads(outputs: number): null[] {
  return outputs === 1 ? [null] : new Array<null>(outputs).fill(null);
}

function wantsGrad(inputs: readonly Tensor[]): boolean {
  for (let i = 0; i < inputs.length; ++i) if ((inputs[i] as Tensor).requiresGrad) return true;
  return false;
}

/** A recorded op. Holds what it saved until its backward has run or its scope ends. */
export class GradFn {
  /** Its number in the order of recording. */
  readonly sequence = ++sequence;
  /** Gradients of the outputs, filled while backward runs; owned. */
  readonly grads: (Tensor | null)[];
  /** @internal One for each input. */
  readonly edges: readonly Edge[];
  /** Whether its backward has run, or its scope has ended. */
  isReleased = false;
  /** Runs just before the backward of this node. */
  before: (() => void) | null = null;
  /** Recorded ops that read an output of it and have not said passed() yet. */
  readers = 0;
  /**
   * Runs as soon as all of them have, which may be before they have done the rest of their work.
   */
  whenComplete: (() => void) | null = null;

  constructor(
    /** The op that recorded it. */
    readonly name: string,
    inputs: readonly Tensor[],
    outputs: number,
    private readonly saved: readonly Saved[],
    private readonly body: Backward,
  ) {
    this.grads = noGrads(outputs);
    this.edges = edgesTo(inputs);
    for (let i = 0; i < saved.length; ++i) (saved[i] as Saved).retain();
  }

  /** Runs the backward once and lets everything go. */
  run(sink: GradSink): void {
    if (this.isReleased) {
      this.dropGrads();
      throw new DsError({
        code: 'DS_AUTOGRAD',
        op: this.name,
        expected: 'one backward through each graph',
        got: 'a second one',
        hint: 'Run the forward again; saved tensors are freed as backward passes them.',
      });
    }
    this.requireUnchanged();
    this.before?.();
    this.body(this.grads, sink);
    this.release();
  }

  /** Frees saved tensors and gradients. Idempotent. */
  release(): void {
    if (this.isReleased) return;
    this.isReleased = true;
    this.dropGrads();
    for (const each of this.saved) each.release();
    for (const edge of this.edges) edge.leaf?.release();
  }

  /** Throws DS_AUTOGRAD where a saved tensor was changed in place after this node was recorded. */
  private requireUnchanged(): void {
    for (const { changedAt = 0 } of this.saved) {
      if (changedAt < this.sequence) continue;
      this.dropGrads();
      throw new DsError({
        code: 'DS_AUTOGRAD',
        op: this.name,
        expected: 'the values that its forward has seen, which its backward reads again',
        got: 'a tensor that was changed in place since',
        hint: 'Change a clone(), use the form without "_", or change it after backward().',
      });
    }
  }

  private dropGrads(): void {
    for (let i = 0; i < this.grads.length; ++i) {
      this.grads[i]?.release();
      this.grads[i] = null;
    }
  }
}

/**
 * Puts outputs into the graph when recording is on and an input needs a gradient. `saved` is what
 * the backward reads: it is held until that has run.
 */
export function record(
  name: string,
  inputs: readonly Tensor[],
  outputs: readonly Tensor[],
  saved: readonly Saved[],
  backward: Backward,
): void {
  if (!enabled || !wantsGrad(inputs)) return;
  const node = new GradFn(name, inputs, outputs.length, saved, backward);
  currentScope()?.adoptNode(node);
  enter(outputs, node);
}

/**
 * Puts `tensors` into the graph as its beginning: `arrive` gets their gradients, null where none
 * reached one, borrowed, after everything computed from them has been passed. Unlike a leaf's,
 * these are never copied.
 */
export function beginGraph(
  tensors: readonly Tensor[],
  arrive: (grads: readonly (Tensor | null)[]) => void,
): void {
  const node = new GradFn('begin', [], tensors.length, [], arrive);
  currentScope()?.adoptNode(node);
  enter(tensors, node);
}

function enter(outputs: readonly Tensor[], node: GradFn): void {
  for (let i = 0; i < outputs.length; ++i) {
    const output = outputs[i] as Tensor;
    output.requiresGrad = true;
    output.gradFn = node;
    output.gradIndex = i;
  }
}

/**
 * Calls `hook` when backward reaches `output`, before the op that made it and after the hooks that
 * op already has.
 */
export function beforeBackward(output: Tensor, hook: () => void): void {
  const node = nodeOf(output);
  if (!node) return;
  const { before } = node;
  node.before = before
    ? () => {
        before();
        hook();
      }
    : hook;
}

/** Where a backward function leaves the gradients of its inputs. */
export class GradSink {
  /** @internal The node whose backward is running. */
  node!: GradFn;
  /** @internal Leaves whose gradient of this node comes later. */
  readonly awaited = new Set<Tensor>();
  /** Gradients that are being written, outermost first. */
  private readonly open: { edge: Edge; out: Tensor }[] = [];

  /** Whether input `i` wants a gradient. */
  needs(i: number): boolean {
    return (this.node.edges[i] as Edge).requiresGrad;
  }

  /** Of input `i`, and of its gradient. */
  shapeOf(i: number): readonly number[] {
    return (this.node.edges[i] as Edge).shape;
  }

  /**
   * Lets `body` write the gradient of input `i` in place: into `out`, adding when `accumulate` is
   * true. No call when the input wants none. `out` has the input's shape and dtype and is
   * contiguous.
   */
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

  /**
   * As write(); where somebody collects late gradients (leavingLate) and input `i` is a leaf,
   * `body` runs later: what it reads is in `reads`, besides the node's own inputs that are leaves.
   */
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
    const then = new GradSink();
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

  /**
   * Says that the gradient of input `i` is all there, where more is left to do: whoever waits for
   * it alone may go on.
   */
  passed(i: number): void {
    const { fn } = this.node.edges[i] as Edge;
    if (fn && --fn.readers === 0) fn.whenComplete?.();
  }

  /**
   * Hands over a finished gradient without a copy where possible; `grad` is borrowed and may be
   * shared.
   */
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
  const sink = new GradSink();
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
