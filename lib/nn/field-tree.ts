// The tree of fields below a module: what belongs to it and those inside it, under which names.
import { DsError } from '../errors.js';
import { isPlainObject } from '../runtime/is-object.js';
import { Tensor } from '../tensor/index.js';
import { Parameter } from './parameter.js';

/** What the tree asks of a module (module.ts). */
interface Branch {
  /** Another rank of a pipeline has it. */
  readonly isElsewhere: boolean;
}

/** What belongs to a module of class M; a tensor that is no parameter is a buffer. */
type FieldOf<M> = Parameter | Tensor | M;

/** What belongs to a module directly, by name. */
type FieldsOf<M> = (module: M) => Iterable<[string, FieldOf<M>]>;

/** A field of the root or below it: its path, and whether the model has it on this rank. */
type Found<M> = readonly [path: string, field: FieldOf<M>, isHere: boolean];

/** Reads the fields anew on every call: programs put modules in and take them out. */
export class FieldTree<M extends Branch> {
  constructor(
    private readonly root: M,
    private readonly fieldsOf: FieldsOf<M>,
  ) {}

  /** The root under the name "" and all below it, parents first, each once. */
  *modules(): Generator<[string, M]> {
    const seen = new Set<M>([this.root]);
    yield ['', this.root];
    for (const [name, field, isHere] of this.walk()) {
      if (!isHere || field instanceof Tensor || seen.has(field)) continue;
      seen.add(field);
      yield [name, field];
    }
  }

  /** Those in the root's own fields, each once. */
  *children(): Generator<[string, M]> {
    const seen = new Set<M>();
    for (const [name, field] of this.fieldsOf(this.root)) {
      if (field instanceof Tensor || seen.has(field)) continue;
      seen.add(field);
      yield [name, field];
    }
  }

  /** The outermost elements of lists. */
  *elements(module = this.root, prefix = ''): Generator<[string, M]> {
    for (const [name, field] of this.fieldsOf(module)) {
      if (field instanceof Tensor || field.isElsewhere) continue;
      const path = prefix + name;
      if (/\.\d+$|^\d+$/.test(name)) yield [path, field];
      else yield* this.elements(field, `${path}.`);
    }
  }

  /** Every parameter once, under the first of its names. */
  *parameters(): Generator<[string, Parameter]> {
    for (const [parameter, [name]] of this.parameterNames()) yield [name as string, parameter];
  }

  /** The further names of parameters, with the first ones. */
  tiedNames(): Map<string, string> {
    const tied = new Map<string, string>();
    for (const [first, ...others] of this.parameterNames().values()) {
      for (const name of others) tied.set(name, first as string);
    }
    return tied;
  }

  /** Every buffer, as often as it has names. */
  *buffers(): Generator<[string, Tensor]> {
    for (const [name, field, isHere] of this.walk())
      if (isHere && isBuffer(field)) yield [name, field];
  }

  /**
   * All names of each parameter that is here, also those under which it is elsewhere, in the order
   * of the first ones: the same on all ranks of a pipeline.
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
   * Every parameter, buffer and module below `module`, those of several names as often. Throws
   * DS_ARGUMENT for a module inside itself; `above` are those that hold `module`.
   */
  private *walk(
    module = this.root,
    prefix = '',
    above: readonly M[] = [],
    isReached = true,
  ): Generator<Found<M>> {
    const chain = [...above, module];
    for (const [name, field] of this.fieldsOf(module)) {
      const path = prefix + name;
      if (field instanceof Tensor) {
        yield [path, field, isReached];
        continue;
      }
      if (chain.includes(field)) throw endless(path, field);
      const isHere = isReached && !field.isElsewhere;
      yield [path, field, isHere];
      yield* this.walk(field, `${path}.`, chain, isHere);
    }
  }
}

/** Whether a field is a tensor that is state, but no parameter. */
export function isBuffer(field: unknown): field is Tensor {
  return field instanceof Tensor && !(field instanceof Parameter);
}

/**
 * What `isMember` recognises in `value`, a list, Map, Set or plain object, and in those inside it,
 * under the names of their places, "field.key".
 */
export function* collected<Member>(
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
      yield* collected(path, item, isMember, seen);
    }
  }
}

/** What a list, a Map, a Set or a plain object holds; nothing for other objects. */
function entriesOf(value: object): Iterable<readonly [unknown, unknown]> {
  if (Array.isArray(value) || value instanceof Map) return value.entries();
  if (value instanceof Set) return [...value].entries();
  return isPlainObject(value) ? Object.entries(value) : [];
}

function endless(path: string, module: object): DsError {
  return new DsError({
    code: 'DS_ARGUMENT',
    op: path,
    expected: 'modules below a module',
    got: `the ${module.constructor.name} that holds it`,
    hint: "Keep a module above in a private field (#parent) or a closure: it is no part of this one's.",
  });
}
