// Fields: checks the type and range of each value that is read from a JSON file.
import type { JsonObject, JsonValue } from '../../types/json.js';
import { DsError } from '../errors.js';
import { isObject } from '../runtime/is-object.js';

/** Default hint of errors. */
const DAMAGED = 'The checkpoint is damaged or incomplete: load another tag.';

/** Returns the error for a part of a checkpoint that contradicts the rest. */
export function damagedError(op: string, expected: string, got: string): DsError {
  return new DsError({ code: 'DS_CHECKPOINT', op, expected, got, hint: DAMAGED });
}

/** Maximum number of characters of a value in an error. */
const SHOWN = 80;
/** The largest finite f32: kernels accept no larger number. */
const MAX_F32 = 3.4028234663852886e38;

/**
 * Checks values of the file `location`. Each method returns the value `value` of the field `name`,
 * or throws DS_CHECKPOINT with the location, the field, the expected and the present value.
 */
export class Fields {
  constructor(
    readonly location: string,
    private readonly hint = DAMAGED,
  ) {}

  object(value: unknown, name: string): JsonObject {
    if (isObject<JsonObject>(value)) return value;
    throw this.bad(name, 'an object', value);
  }

  list(value: unknown, name: string): JsonValue[] {
    if (Array.isArray(value)) return value;
    throw this.bad(name, 'a list', value);
  }

  objects(value: unknown, name: string): JsonObject[] {
    return this.list(value, name).map((item, i) => this.object(item, `${name}[${i}]`));
  }

  text(value: unknown, name: string): string {
    if (typeof value === 'string') return value;
    throw this.bad(name, 'text', value);
  }

  flag(value: unknown, name: string): boolean {
    if (typeof value === 'boolean') return value;
    throw this.bad(name, 'true or false', value);
  }

  integer(value: unknown, name: string, min = -Number.MAX_SAFE_INTEGER): number {
    if (typeof value === 'number' && Number.isSafeInteger(value) && value >= min) return value;
    const bound = min > -Number.MAX_SAFE_INTEGER ? ` of at least ${min}` : '';
    throw this.bad(name, `a whole number${bound}`, value);
  }

  /** Returns an integer of at least 0. */
  count(value: unknown, name: string): number {
    return this.integer(value, name, 0);
  }

  /** Returns a number in the range of f32, at least `min`. */
  number(value: unknown, name: string, min = -MAX_F32): number {
    if (typeof value === 'number' && value >= min && value <= MAX_F32) return value;
    throw this.bad(name, min === -MAX_F32 ? 'a finite number' : `a number from ${min}`, value);
  }

  oneOf<T extends string>(value: unknown, name: string, choices: readonly T[]): T {
    if ((choices as readonly unknown[]).includes(value)) return value as T;
    throw this.bad(name, choices.join(', '), value);
  }

  bad(name: string, expected: string, value: unknown): DsError {
    return this.refusal(name, expected, formatField(value));
  }

  refusal(name: string, expected: string, got: string): DsError {
    const { location, hint } = this;
    return new DsError({ code: 'DS_CHECKPOINT', op: `${location}: ${name}`, expected, got, hint });
  }
}

function formatField(value: unknown): string {
  const text = Array.isArray(value) ? `a list of ${value.length}` : outline(value);
  return text.length > SHOWN ? `${text.slice(0, SHOWN)}...` : text;
}

function outline(value: unknown): string {
  if (isObject(value)) return 'an object';
  return JSON.stringify(value) ?? 'nothing';
}
