// Checks that a model argument of a public function is a Module, for plain JavaScript callers.
import { argumentError } from '../runtime/input-errors.js';
import { Module } from './module.js';

/** Throws DS_ARGUMENT with `op` and the value unless it is a Module. */
export function requireModule(op: string, value: unknown): asserts value is Module {
  if (value instanceof Module) return;
  throw argumentError(
    op,
    'a model: an object of a class that extends nn.Module',
    describeValue(value),
    modelHint(value),
  );
}

/** Returns a hint for a value that is not a model. */
export function modelHint(value: unknown): string {
  if (typeof value === 'function') return `Pass new ${value.name}(...).`;
  if (!(value instanceof Promise)) return '';
  return 'Await the promise: fromPretrained() resolves with the model.';
}

/** Describes a value for a message about models. */
export function describeValue(value: unknown): string {
  if (typeof value === 'function') return `the class ${value.name} itself`;
  if (typeof value !== 'object' || value === null) return String(value);
  const { name } = value.constructor ?? Object;
  return value instanceof Module ? `a ${name} without forward()` : `an object of class ${name}`;
}
