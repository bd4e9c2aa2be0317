// Scopes: a scope frees every tensor made inside it at its end, unless the tensor is returned or
// kept.

import { requireEnded, requireType } from '../runtime/require-type.js';

/** An object that a scope frees: a tensor (tensor.ts). */
interface Scoped {
  readonly owner: Scope | null;
  readonly grad: Scoped | null;
  readonly gradFn: object | null;
  readonly isDisposed: boolean;
  passTo(owner: Scope | null): void;
  dispose(): void;
  release(): void;
}

/** An object that a scope releases: a node of the graph (tape.ts). */
interface ScopedNode {
  readonly isReleased: boolean;
  release(): void;
}

/** Owns the tensors created, and the graph nodes recorded, while it is the innermost open scope. */
export class Scope {
  private tensors: Scoped[] = [];
  private nodes: ScopedNode[] = [];
  /**
   * The owner of the graphs recorded here after passResult() has passed a result and its graph on;
   * null: the caller. Undefined if the graphs stay here.
   */
  private nextOwner: Scope | null | undefined;

  /** @internal Called by Tensor's constructor. */
  adopt(tensor: Scoped): void {
    const { tensors } = this;
    tensors[tensors.length] = tensor; // Runs for every op: push() would be a call, this is not.
  }

  /** @internal Called when an op is recorded. */
  adoptNode(node: ScopedNode): void {
    const { nodes } = this;
    nodes[nodes.length] = node;
  }

  /**
   * Frees all tensors and graphs that it still owns, also graphs without a backward; the scope can
   * be used again.
   */
  release(): void {
    const { tensors, nodes, nextOwner } = this;
    this.tensors = [];
    this.nodes = [];
    this.nextOwner = undefined;
    for (const node of nodes) node.release();
    for (const tensor of tensors) {
      if (tensor.owner !== this) continue;
      tensor.dispose();
      // Tensors saved by these graphs go with them: the caller may drop them without a backward.
      if (nextOwner !== undefined && !tensor.isDisposed) tensor.passTo(nextOwner);
    }
  }

  /** Passes the graphs recorded here to `next`, so that a result's backward still works. */
  surrenderNodes(next: Scope | null): void {
    const nodes = this.nodes;
    this.nodes = [];
    if (next) for (const node of nodes) if (!node.isReleased) next.adoptNode(node);
    this.nextOwner = next === unowned ? null : next;
  }

  /**
   * Passes `tensor` and its gradient to `next` (null: to the caller), so that release() does not
   * free them.
   */
  surrender(tensor: Scoped, next: Scope | null): void {
    if (tensor.owner !== this) return;
    tensor.passTo(next);
    if (tensor.grad) this.surrender(tensor.grad, next);
  }
}

let innermost: Scope | null = null;

/**
 * Returns the innermost open scope; null outside of all scopes, where the caller owns new tensors.
 */
export function currentScope(): Scope | null {
  return innermost;
}

/**
 * Makes `scope` the innermost one while `body` runs, without releasing it. null: no scope, the
 * caller owns new tensors.
 */
export function within<T>(scope: Scope | null, body: () => T): T {
  const outer = innermost;
  innermost = scope;
  try {
    return body();
  } finally {
    innermost = outer;
  }
}

/** Returns whether the value is a tensor: only tensors have both fields. */
const isScoped = (value: object): value is Scoped => 'owner' in value && 'buffer' in value;

/**
 * Calls `each` for the tensors in a value: in arrays, Maps, Sets and plain objects at any depth.
 */
function forEachTensor(value: unknown, each: (tensor: Scoped) => void): void {
  if (value === null || typeof value !== 'object') return;
  if (isScoped(value)) each(value);
  else if (Array.isArray(value) || value instanceof Set)
    for (const item of value) forEachTensor(item, each);
  else if (value instanceof Map) for (const item of value.values()) forEachTensor(item, each);
  else if (Object.getPrototypeOf(value) === Object.prototype) {
    for (const item of Object.values(value)) forEachTensor(item, each);
  }
}

/** Returns the tensors that leave a scope when `value` is returned from it. See tensorsIn(). */
export function scopedIn(value: unknown): Scoped[] {
  const found: Scoped[] = [];
  forEachTensor(value, (tensor) => found.push(tensor));
  return found;
}

/**
 * Passes the tensors of `result`, and the graph that computed them, from one scope to another (or
 * to the caller).
 */
export function passResult(from: Scope, to: Scope | null, result: unknown): void {
  let inGraph = false;
  forEachTensor(result, (tensor) => {
    from.surrender(tensor, to);
    inGraph ||= tensor.gradFn !== null;
  });
  if (inGraph) from.surrenderNodes(to);
}

/** The tensors of held() that allOrNothing() has created so far; null outside of it. */
let createdTensors: Scoped[] | null = null;

/** A scope that owns no tensors: their creator releases them. */
class Unowned extends Scope {
  override adopt(tensor: Scoped): void {
    createdTensors?.push(tensor);
  }
  override adoptNode(): void {}
}
const unowned = new Unowned();

/**
 * @internal Creates tensors that no scope frees and no finalizer watches: the caller releases them.
 */
export function held<T>(body: () => T): T {
  return within(unowned, body);
}

/**
 * @internal Runs `body`, which builds an object that owns held tensors. If it throws, frees all
 * held tensors that it created and did not release, including tensors of a partially constructed
 * object.
 */
export function allOrNothing<T>(body: () => T): T {
  const outer = createdTensors;
  const created: Scoped[] = [];
  createdTensors = created;
  try {
    const result = body();
    if (outer) outer.push(...created);
    return result;
  } catch (error) {
    for (const tensor of created) while (!tensor.isDisposed) tensor.release();
    throw error;
  } finally {
    createdTensors = outer;
  }
}

/**
 * Runs `body` in a new scope and frees every tensor that it made, except tensors in the returned
 * value (which pass to the enclosing scope, or to the caller) and tensors saved for a backward.
 */
export function scope<T>(body: () => T): T {
  requireType('scope', body, 'function');
  return requireEnded('scope', scopeInto(innermost, body), {
    consequence: 'its tensors would be freed while it still runs',
    hint: 'Open scopes around the synchronous parts, and keep() tensors that cross an await.',
  });
}

/** Runs `body` as scope() does, and passes the returned value to `to`. */
export function scopeInto<T>(to: Scope | null, body: () => T): T {
  const inner = new Scope();
  try {
    const result = within(inner, body);
    passResult(inner, to, result);
    return result;
  } finally {
    inner.release();
  }
}
