// Modules below a model at the dotted paths of transformers, so that parameters have its names.
import { DsError } from '../../errors.js';
import { Module } from '../../nn/module.js';

/** A module that only holds others, between two dots of a name. */
export class Group extends Module {
  override forward(): never {
    const expected = 'a call of the modules in it';
    throw new DsError({ code: 'DS_ARGUMENT', op: 'Group', expected, got: 'a call of the group' });
  }
}

type Fields = Record<string, unknown>;

const split = new Map<string, readonly string[]>();

/** The names in a path, cached: every forward reads them. */
function namesIn(path: string): readonly string[] {
  const known = split.get(path) ?? path.split('.');
  split.set(path, known);
  return known;
}

/** Sets `child` at `path` below `root`; makes the groups between them. */
export function place(root: Module, path: string, child: unknown): void {
  const names = namesIn(path);
  let owner = root as unknown as Fields;
  for (const name of names.slice(0, -1)) {
    owner[name] ??= new Group();
    owner = owner[name] as Fields;
  }
  owner[names.at(-1) as string] = child;
}

/** The module or parameter at `path` below `root`; adapters may have replaced a layer. */
export function at<Child>(root: Module, path: string): Child {
  let found: unknown = root;
  for (const name of namesIn(path)) found = (found as Fields)[name];
  return found as Child;
}
