// Defines Python's names of methods and properties. Their use throws an error with the name in this
// library.
import { argumentError } from './input-errors.js';

/** A class. */
interface Owner {
  readonly name: string;
  readonly prototype: object;
}

/** The Python names of a class. */
interface PythonNames {
  /** The object in messages, such as "engine". */
  label: string;
  /**
   * Whether only methods get Python names, because subclasses may set any property. Default: false.
   */
  methodsOnly?: boolean;
  /** Properties that the constructor of the type sets, by their names here. */
  fields?: readonly string[];
  /** Python names that differ from the snake_case of a name here, and their replacements. */
  others?: Readonly<Record<string, string>>;
}

const finished = new WeakSet<object>();

/**
 * Returns the Python name: "saveCheckpoint" becomes "save_checkpoint", "save16bitModel" becomes
 * "save_16bit_model".
 */
const snakeCase = (name: string): string =>
  name
    .replace(/([a-z])(\d)/g, '$1_$2')
    .replace(/([a-z\d])([A-Z])/g, '$1_$2')
    .toLowerCase();

/**
 * Defines Python's names on `type` and its base classes. A method with such a name throws
 * DS_ARGUMENT when called, a property when read or written. Without the error, undefined would end
 * a loop like `while (engine.global_steps < 100)` at once.
 */
export function definePythonNames(type: Owner, names: PythonNames): void {
  const { label, methodsOnly = false, fields = [], others = {} } = names;
  let owner: object | null = type.prototype;
  while (owner && owner !== Object.prototype && !finished.has(owner)) {
    finished.add(owner);
    for (const [name, property] of Object.entries(Object.getOwnPropertyDescriptors(owner))) {
      if (typeof property.value === 'function') define(owner, snakeCase(name), label, `${name}()`);
      else if (!methodsOnly) define(owner, snakeCase(name), label, name);
    }
    owner = Object.getPrototypeOf(owner) as object | null;
  }
  for (const field of fields) define(type.prototype, snakeCase(field), label, field);
  for (const [name, instead] of Object.entries(others)) {
    define(type.prototype, name, label, instead);
  }
}

/**
 * Defines the Python name `name`, whose use throws an error that names `instead`. `instead` ends in
 * "()" for a method.
 */
function define(owner: object, name: string, label: string, instead: string): void {
  if (name in owner || !/^[a-z]\w*$/.test(name)) return;
  const refuse = (): never => {
    const hint = 'docs/coming-from-deepspeed.md lists both names.';
    throw argumentError(`${label}.${name}`, instead, 'the name in Python', hint);
  };
  const isCalled = instead.includes('(');
  Object.defineProperty(owner, name, {
    configurable: true,
    enumerable: false,
    // A subclass may have a method or a field of this name.
    ...(isCalled ? { value: refuse, writable: true } : { get: refuse, set: refuse }),
  });
}
