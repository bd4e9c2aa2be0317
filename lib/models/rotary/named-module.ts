// Modules under the names that a family gives them, so that parameters and adapters have
// transformers' names.
import { Module } from '../../nn/module.js';

/** The module "model" of the name "model.decoder": its only part is "decoder". */
class EnclosingModule extends Module {
  readonly #inner: Module;

  constructor(name: string, inner: Module) {
    super();
    this.#inner = inner;
    Object.assign(this, { [name]: inner });
  }

  /** The computation of its part. */
  override forward(...inputs: unknown[]): unknown {
    return this.#inner.call(...inputs);
  }
}

/** Sets `child` at a path of one or two names, such as "model.decoder". */
export function setAtPath(owner: Module, path: string, child: Module): void {
  const [first = path, second] = path.split('.');
  Object.assign(owner, { [first]: second ? new EnclosingModule(second, child) : child });
}

/**
 * Sets `child` as the field `name`, or at that path. The property `usual` reads and writes the same
 * field.
 */
export function setNamed(
  owner: Module,
  usual: string,
  name: string,
  child: Module | readonly Module[],
): void {
  if (child instanceof Module) setAtPath(owner, name, child);
  else Object.assign(owner, { [name]: child });
  if (name === usual) return;
  const [last = name, ...outer] = name.split('.').reverse();
  const fields = (): Record<string, unknown> => {
    const fields = owner as unknown as Record<string, unknown>;
    return outer.reduceRight((all, part) => all[part] as Record<string, unknown>, fields);
  };
  Object.defineProperty(owner, usual, {
    enumerable: false,
    get: () => fields()[last],
    set: (value: unknown) => {
      fields()[last] = value;
    },
  });
}
