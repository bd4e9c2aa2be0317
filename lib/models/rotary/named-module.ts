// Modules under the names that a family gives them, so that parameters and adapters have
// transformers' names.
import type { Module } from '../../nn/module.js';

/** Sets `child` as a field `name`; `usual` reads and writes it too, as no field of its own. */
export function setNamed(
  owner: Module,
  usual: string,
  name: string,
  child: Module | readonly Module[],
): void {
  Object.assign(owner, { [name]: child });
  if (name === usual) return;
  const fields = owner as unknown as Record<string, unknown>;
  Object.defineProperty(owner, usual, {
    enumerable: false,
    get: () => fields[name],
    set: (value: unknown) => {
      fields[name] = value;
    },
  });
}
