// Backward hooks of a module: the gradients of its outputs and inputs pass through two nodes of the
// tape.

import { formatValue } from '../runtime/format-value.js';
import { argumentError, valueError } from '../runtime/input-errors.js';
import { required } from '../runtime/required.js';
import { describe } from '../runtime/view.js';
import { isGradEnabled, record, type Saved, Tensor } from '../tensor/index.js';

/**
 * The gradient of each tensor; null if it has none or needs none. They are valid during the hook:
 * clone() a gradient to keep it.
 */
export type Gradients = readonly (Tensor | null)[];

/** The result of a hook: replacement gradients, or no value. */
// biome-ignore lint/suspicious/noConfusingVoidType: most hooks return no value.
export type ReplacedGradients = Gradients | void;

type PreHook<Owner> = (module: Owner, gradOutput: Gradients) => ReplacedGradients;
type FullHook<Owner> = (
  module: Owner,
  gradInput: Gradients,
  gradOutput: Gradients,
) => ReplacedGradients;

/**
 * Returns `replacement`, or `grads` if it is undefined. Throws DS_ARGUMENT unless both have the
 * same shapes.
 */
function checkGradients(op: string, grads: Gradients, replacement: unknown): Gradients {
  if (replacement === undefined) return grads;
  const list: readonly unknown[] | null = Array.isArray(replacement) ? replacement : null;
  if (!list || list.length !== grads.length) {
    const got = list ? `${list.length} gradients` : formatValue(replacement);
    throw argumentError(op, `undefined, or a list of ${grads.length} gradients`, got);
  }
  for (const [i, grad] of grads.entries()) {
    const next = list[i];
    if (next === null || next === undefined) continue;
    const isLike =
      next instanceof Tensor &&
      grad !== null &&
      next.dtype === grad.dtype &&
      next.device === grad.device &&
      next.shape.join() === grad.shape.join();
    if (isLike) continue;
    const expected = grad ? `a gradient like ${describe(grad)}` : 'null where there is no gradient';
    throw argumentError(
      `${op} [${i}]`,
      expected,
      next instanceof Tensor ? describe(next) : formatValue(next),
    );
  }
  return list.map((next) => (next ?? null) as Tensor | null);
}

/**
 * Returns the tensors unchanged, as outputs of one node. Its backward passes on the gradients that
 * `change` returns.
 */
function passThroughNode(
  name: string,
  tensors: readonly Tensor[],
  saved: readonly Saved[],
  change: (grads: Gradients) => Gradients,
): Map<unknown, Tensor> {
  const outputs = tensors.map((x) => x.alias(x.shape, x.strides));
  record(name, tensors, outputs, saved, (grads, sink) => {
    change(grads).forEach((grad, i) => {
      if (grad) sink.addGrad(i, grad);
    });
  });
  return new Map(tensors.map((x, i) => [x, required(outputs[i])]));
}

/** Returns the unique tensors among `values` that require a gradient. */
function gradientTensors(values: readonly unknown[]): Tensor[] {
  const found = values.filter((x): x is Tensor => x instanceof Tensor && x.requiresGrad);
  return [...new Set(found)];
}

/**
 * One call of a module with backward hooks. The inputs' node holds the gradients of the outputs.
 */
class HookedCall<Owner extends object> implements Saved {
  private gradOutput: Gradients = [];
  /** For each input, its index among the inputs that require gradients, or -1. */
  private positions: readonly number[] = [];

  constructor(
    private readonly hooks: BackwardHooks<Owner>,
    private readonly module: Owner,
  ) {}

  retain(): void {}

  release(): void {
    for (const grad of this.gradOutput) grad?.release();
    this.gradOutput = [];
  }

  /**
   * Returns the inputs; inputs with gradients pass through a node. A tensor that is passed twice
   * counts at its first position.
   */
  wrapInputs<Inputs extends readonly unknown[]>(given: Inputs): Inputs {
    const tracked = gradientTensors(given);
    this.positions = given.map((x, i) =>
      given.indexOf(x) < i ? -1 : tracked.indexOf(x as Tensor),
    );
    if (tracked.length === 0) return given;
    const name = `inputs of ${this.module.constructor.name}`;
    const through = passThroughNode(name, tracked, [this], (grads) => {
      const gradInput = this.positions.map((position) => grads[position] ?? null);
      const next = this.hooks.runFullHooks(this.module, gradInput, this.gradOutput);
      return tracked.map((_, position) => next[this.positions.indexOf(position)] ?? null);
    });
    return given.map((x) => through.get(x) ?? x) as readonly unknown[] as Inputs;
  }

  /**
   * Returns the result of forward, with its tensors passed through a node. Throws DS_ARGUMENT if
   * forward returned other values than tensors.
   */
  wrapOutput<Output>(given: Output): Output {
    const list: readonly unknown[] = Array.isArray(given) ? given : [given];
    this.requireTensors(list);
    const tracked = gradientTensors(list);
    if (tracked.length === 0) return given;
    const name = `outputs of ${this.module.constructor.name}`;
    const through = passThroughNode(name, tracked, [], (grads) => {
      const arrived = list.map((x) => grads[tracked.indexOf(x as Tensor)] ?? null);
      const next = this.hooks.runPreHooks(this.module, arrived);
      this.arrive(next);
      return tracked.map((x) => next[list.indexOf(x)] ?? null);
    });
    const out = list.map((x) => through.get(x) ?? x);
    return (Array.isArray(given) ? out : out[0]) as Output;
  }

  /** Receives the gradients of the outputs. Runs the hooks here if no input requires a gradient. */
  private arrive(gradOutput: Gradients): void {
    if (this.positions.some((position) => position >= 0)) {
      for (const grad of gradOutput) grad?.retain();
      this.gradOutput = gradOutput;
    } else {
      const none = this.positions.map(() => null);
      this.hooks.runFullHooks(this.module, none, gradOutput);
    }
  }

  private requireTensors(list: readonly unknown[]): void {
    const other = list.find((x) => x !== null && x !== undefined && !(x instanceof Tensor));
    if (other === undefined) return;
    const op = `${this.module.constructor.name} with backward hooks`;
    const expected = 'a forward that returns a tensor or a list of tensors';
    throw valueError(op, expected, other, 'Hook a module inside it that does.');
  }
}

/** The backward hooks of one module. */
export class BackwardHooks<Owner extends object> {
  private readonly pre = new Set<PreHook<Owner>>();
  private readonly full = new Set<FullHook<Owner>>();

  addPre(hook: PreHook<Owner>): () => void {
    this.pre.add(hook);
    return () => this.pre.delete(hook);
  }

  addFull(hook: FullHook<Owner>): () => void {
    this.full.add(hook);
    return () => this.full.delete(hook);
  }

  /**
   * Starts a call. Returns null if there is no work for it: without hooks, or if no gradients are
   * recorded.
   */
  start(module: Owner): HookedCall<Owner> | null {
    if (this.pre.size + this.full.size === 0 || !isGradEnabled()) return null;
    return new HookedCall(this, module);
  }

  runPreHooks(module: Owner, gradOutput: Gradients): Gradients {
    const op = `${module.constructor.name} backward pre-hook`;
    let grads = gradOutput;
    for (const hook of this.pre) grads = checkGradients(op, grads, hook(module, grads));
    return grads;
  }

  runFullHooks(module: Owner, gradInput: Gradients, gradOutput: Gradients): Gradients {
    const op = `${module.constructor.name} backward hook`;
    let grads = gradInput;
    for (const hook of this.full)
      grads = checkGradients(op, grads, hook(module, grads, gradOutput));
    return grads;
  }
}
