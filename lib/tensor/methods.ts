// The ops as methods: x.add(y).relu() is relu(add(x, y)), with the same shapes and errors.

import type { DsError } from '../errors.js';
import type { Device } from '../runtime/device.js';
import type { DType } from '../runtime/dtype.js';
import { formatValue } from '../runtime/format-value.js';
import { argumentError } from '../runtime/input-errors.js';
import { entriesOf } from '../runtime/typed-keys.js';
import { backward } from './backward.js';
import { type Modules, methods } from './methods.generated.js';
import * as ops from './ops/index.js';
import { Tensor } from './tensor.js';

/** Functions that are also methods. Types and docs are those of the functions. */
type Name = keyof typeof methods;

/** All parameters but the first. */
type Rest<Parameters> = Parameters extends readonly [unknown, ...infer Others] ? Others : never;

/** All of `Parts` in one. */
type Joined<Parts> = Parts extends readonly [infer First, ...infer Others]
  ? First & Joined<Others>
  : unknown;

// Not `typeof ops`: its members are aliases without docs.
type Functions = Pick<Joined<Modules>, Name>;
type Methods = {
  [Name in keyof Functions]: (
    ...rest: Rest<Parameters<Functions[Name]>>
  ) => ReturnType<Functions[Name]>;
};

declare module './tensor.js' {
  interface Tensor extends Methods {
    /** As the function to(). */
    to(...targets: (DType | Device | string)[]): Tensor;

    /**
     * Adds the gradient of this tensor to every leaf below it; `seed` defaults to 1 for a scalar.
     */
    backward(seed?: Tensor | null): void;
  }
}

type Op = (x: Tensor, ...rest: unknown[]) => unknown;
const table = ops as unknown as Record<Name, Op>;

/** Functions with options or dims as the last argument. */
const REDUCTIONS: readonly string[] = [
  'sum',
  'mean',
  'max',
  'min',
  'prod',
  'any',
  'all',
  'var',
  'std',
];

/** Rejects surplus arguments, which JavaScript would drop: sum(1, true) would be sum(1). */
function surplus(name: Name, max: number, given: readonly unknown[]): DsError {
  const takesOptions = REDUCTIONS.includes(name);
  return argumentError(
    name,
    max === 0 ? 'no arguments' : `at most ${max} argument${max > 1 ? 's' : ''}`,
    `${given.length}: ${given.map(formatValue).join(', ')}`,
    takesOptions ? `Pass options by name: ${name}({ dims: 1, keepDim: true }).` : '',
  );
}

for (const [name, max] of entriesOf<Name, number>(methods)) {
  const op = table[name];
  Object.defineProperty(Tensor.prototype, name, {
    configurable: true,
    writable: true,
    value(this: Tensor, ...given: unknown[]) {
      if (given.length > max && given.slice(max).some((value) => value !== undefined)) {
        throw surplus(name, max, given);
      }
      return op(this, ...given);
    },
  });
}

Tensor.prototype.to = function (this: Tensor, ...targets: (DType | Device | string)[]): Tensor {
  return ops.to(this, ...targets);
};

Tensor.prototype.backward = function (this: Tensor, seed: Tensor | null = null): void {
  backward(this, [seed]);
};
