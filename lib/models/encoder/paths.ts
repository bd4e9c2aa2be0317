// Places modules at the dotted paths of transformers, so that parameters have the names of its
// files.

import { DsError } from '../../errors.js';
import { Module } from '../../nn/module.js';
import { required } from '../../runtime/required.js';

/** A module that only contains other modules: one name of a dotted path. */
export class Group extends Module {
  override forward(): never {
    const expected = 'a call of the modules in it';
    throw new DsError({ code: 'DS_ARGUMENT', op: 'Group', expected, got: 'a call of the group' });
  }
}

type Fields = Record<string, unknown>;

const split = new Map<string, readonly string[]>();

/** Returns the names in a path. Cached, because every forward reads them. */
function splitPath(path: string): readonly string[] {
  const cached = split.get(path) ?? path.split('.');
  split.set(path, cached);
  return cached;
}

/** Places `child` at `path` below `root`, and creates the groups of the path. */
export function placeChild(root: Module, path: string, child: unknown): void {
  const names = splitPath(path);
  let owner = root as unknown as Fields;
  for (const name of names.slice(0, -1)) {
    owner[name] ??= new Group();
    owner = owner[name] as Fields;
  }
  owner[required(names.at(-1))] = child;
}

/** Returns the module or parameter at `path` below `root`. Adapters may have replaced a layer. */
export function findAt<Child>(root: Module, path: string): Child {
  let current: unknown = root;
  for (const name of splitPath(path)) current = (current as Fields)[name];
  return current as Child;
}
