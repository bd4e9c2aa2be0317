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

/** Names of the functions that are also methods; the methods have the functions' types and docs. */
type Name = keyof typeof methods;

/** All parameters but the first. */
type OtherParameters<Parameters> = Parameters extends readonly [unknown, ...infer Others]
  ? Others
  : never;

/** The intersection of all types in `Parts`. */
type Intersection<Parts> = Parts extends readonly [infer First, ...infer Others]
  ? First & Intersection<Others>
  : unknown;

// Not `typeof ops`: its members are aliases without docs.
type Functions = Pick<Intersection<Modules>, Name>;
type Methods = {
  [Name in keyof Functions]: (
    ...rest: OtherParameters<Parameters<Functions[Name]>>
  ) => ReturnType<Functions[Name]>;
};

declare module './tensor.js' {
  interface Tensor extends Methods {
    /** As the function to(). */
    to(...targets: (DType | Device | string)[]): Tensor;

    /**
     * Adds the gradient of this tensor to every leaf below it. `seed` is the gradient of the tensor
     * itself; a tensor of one element has 1 by default.
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

/**
 * Returns the error for surplus arguments. JavaScript would drop them: sum(1, true) would be
 * sum(1).
 */
function surplusError(name: Name, max: number, args: readonly unknown[]): DsError {
  const takesOptions = REDUCTIONS.includes(name);
  return argumentError(
    name,
    max === 0 ? 'no arguments' : `at most ${max} argument${max > 1 ? 's' : ''}`,
    `${args.length}: ${args.map(formatValue).join(', ')}`,
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
        throw surplusError(name, max, given);
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
