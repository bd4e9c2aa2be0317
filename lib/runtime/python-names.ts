// Python's names of methods and properties: a program that is ported from DeepSpeed and uses one
// gets an error with the name here.
import { refused } from './refused.js';

/** A class. */
interface Owner {
  readonly name: string;
  readonly prototype: object;
}

/** What else a class is asked for. */
export interface PythonNames {
  /** The object in messages, such as "engine". */
  label: string;
  /** Whether only methods get a name: subclasses may set any property. Default false. */
  methodsOnly?: boolean;
  /** Properties that its constructor sets, by their names here. */
  fields?: readonly string[];
  /** Names in Python that are not those here with underscores, and what stands for each. */
  others?: Readonly<Record<string, string>>;
}

const answered = new WeakSet<object>();

/** "saveCheckpoint" to "save_checkpoint", "save16bitModel" to "save_16bit_model". */
export const snakeCase = (name: string): string =>
  name
    .replace(/([a-z])(\d)/g, '$1_$2')
    .replace(/([a-z\d])([A-Z])/g, '$1_$2')
    .toLowerCase();

/**
 * Gives `type`, and the classes that it extends, Python's names of what they have. A method under
 * such a name throws DS_ARGUMENT when it is called, a property when it is read or written:
 * undefined would end a loop such as `while (engine.global_steps < 100)` at once.
 */
export function answerPythonNames(type: Owner, names: PythonNames): void {
  const { label, methodsOnly = false, fields = [], others = {} } = names;
  let owner: object | null = type.prototype;
  while (owner && owner !== Object.prototype && !answered.has(owner)) {
    answered.add(owner);
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

/** `instead` ends in "()" where a method stands for the name. */
function define(owner: object, name: string, label: string, instead: string): void {
  if (name in owner || !/^[a-z]\w*$/.test(name)) return;
  const refuse = (): never => {
    const hint = 'docs/coming-from-deepspeed.md lists the names of both.';
    throw refused(`${label}.${name}`, instead, 'the name in Python', hint);
  };
  const isCalled = instead.includes('(');
  Object.defineProperty(owner, name, {
    ...{ configurable: true, enumerable: false },
    // A subclass may have a method or a field of this name.
    ...(isCalled ? { value: refuse, writable: true } : { get: refuse, set: refuse }),
  });
}
