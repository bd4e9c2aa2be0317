// Finds the parameters, buffers and modules below a module, with their paths.

import type { DsError } from '../errors.js';
import { argumentError } from '../runtime/input-errors.js';
import { isPlainObject } from '../runtime/is-object.js';
import { required } from '../runtime/required.js';
import { Tensor } from '../tensor/index.js';
import { Parameter } from './parameter.js';

/** The members of a module (module.ts) that the tree uses. */
interface Branch {
  /** Whether another rank of a pipeline has the module. */
  readonly isElsewhere: boolean;
}

/** A field of a module of class M; a tensor that is not a parameter is a buffer. */
type FieldOf<M> = Parameter | Tensor | M;

/** Returns a module's direct fields by name. */
type FieldsOf<M> = (module: M) => Iterable<[string, FieldOf<M>]>;

/** A field of the root or below it: its path, and whether the model has it on this rank. */
type FoundField<M> = readonly [path: string, field: FieldOf<M>, isHere: boolean];

/** Finds the fields below a module. Reads them on every call: programs add and remove modules. */
export class FieldTree<M extends Branch> {
  constructor(
    private readonly root: M,
    private readonly fieldsOf: FieldsOf<M>,
  ) {}

  /** Yields the root under the name "" and all modules below it, parents first, each once. */
  *modules(): Generator<[string, M]> {
    const seen = new Set<M>([this.root]);
    yield ['', this.root];
    for (const [name, field, isHere] of this.walk()) {
      if (!isHere || field instanceof Tensor || seen.has(field)) continue;
      seen.add(field);
      yield [name, field];
    }
  }

  /** Yields the modules in the root's own fields, each once. */
  *children(): Generator<[string, M]> {
    const seen = new Set<M>();
    for (const [name, field] of this.fieldsOf(this.root)) {
      if (field instanceof Tensor || seen.has(field)) continue;
      seen.add(field);
      yield [name, field];
    }
  }

  /** Yields the modules in lists, but not modules in lists below these. */
  *elements(module = this.root, prefix = ''): Generator<[string, M]> {
    for (const [name, field] of this.fieldsOf(module)) {
      if (field instanceof Tensor || field.isElsewhere) continue;
      const path = prefix + name;
      if (/\.\d+$|^\d+$/.test(name)) yield [path, field];
      else yield* this.elements(field, `${path}.`);
    }
  }

  /** Yields every parameter once, under its first name. */
  *parameters(): Generator<[string, Parameter]> {
    for (const [parameter, [name]] of this.parameterNames()) yield [required(name), parameter];
  }

  /** Returns the further names of parameters that have several, with their first names. */
  tiedNames(): Map<string, string> {
    const tied = new Map<string, string>();
    for (const [first, ...others] of this.parameterNames().values()) {
      for (const name of others) tied.set(name, required(first));
    }
    return tied;
  }

  /** Yields every buffer once per name. */
  *buffers(): Generator<[string, Tensor]> {
    for (const [name, field, isHere] of this.walk())
      if (isHere && isBuffer(field)) yield [name, field];
  }

  /**
   * Returns all names of each local parameter, including names on other pipeline ranks, in the
   * order of first names: the same on all ranks of a pipeline.
   */
  private parameterNames(): Map<Parameter, string[]> {
    const all = new Map<Parameter, string[]>();
    const here = new Set<Parameter>();
    for (const [name, field, isHere] of this.walk()) {
      if (!(field instanceof Parameter)) continue;
      all.set(field, [...(all.get(field) ?? []), name]);
      if (isHere) here.add(field);
    }
    return new Map([...all].filter(([parameter]) => here.has(parameter)));
  }

  /**
   * Yields every parameter, buffer and module below `module`, once per name. Throws DS_ARGUMENT for
   * a module inside itself; `above` are the ancestors of `module`.
   */
  private *walk(
    module = this.root,
    prefix = '',
    above: readonly M[] = [],
    isReached = true,
  ): Generator<FoundField<M>> {
    const chain = [...above, module];
    for (const [name, field] of this.fieldsOf(module)) {
      const path = prefix + name;
      if (field instanceof Tensor) {
        yield [path, field, isReached];
        continue;
      }
      if (chain.includes(field)) throw endlessError(path, field);
      const isHere = isReached && !field.isElsewhere;
      yield [path, field, isHere];
      yield* this.walk(field, `${path}.`, chain, isHere);
    }
  }
}

/** Returns whether a field is a tensor that is state, but not a parameter. */
export function isBuffer(field: unknown): field is Tensor {
  return field instanceof Tensor && !(field instanceof Parameter);
}

/**
 * Yields the members of `value` (a list, Map, Set or plain object, nested) that `isMember` accepts,
 * with names "field.key".
 */
export function* collectMembers<Member>(
  name: string,
  value: object,
  isMember: (item: unknown) => item is Member,
  seen = new Set<object>(),
): Generator<[string, Member]> {
  if (seen.has(value)) return;
  seen.add(value);
  for (const [key, item] of entriesOf(value)) {
    const path = `${name}.${String(key)}`;
    if (isMember(item)) yield [path, item];
    else if (typeof item === 'object' && item !== null) {
      yield* collectMembers(path, item, isMember, seen);
    }
  }
}

/** Returns the entries of a list, a Map, a Set or a plain object; none of other objects. */
function entriesOf(value: object): Iterable<readonly [unknown, unknown]> {
  if (Array.isArray(value) || value instanceof Map) return value.entries();
  if (value instanceof Set) return [...value].entries();
  return isPlainObject(value) ? Object.entries(value) : [];
}

function endlessError(path: string, module: object): DsError {
  return argumentError(
    path,
    'modules below a module',
    `the ${module.constructor.name} that contains it`,
    'Keep a parent module in a private field (#parent) or a closure, because it is not a child.',
  );
}
