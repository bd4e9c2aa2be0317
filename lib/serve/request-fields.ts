// Reads the fields of a request with type and range checks, and refuses unread fields.
import type { JsonObject, JsonValue } from '../../types/json.js';
import { DsError } from '../errors.js';
import { formatValue } from '../runtime/format-value.js';
import { isObject } from '../runtime/is-object.js';
import { type Declared, integer, type Option, type Settings } from '../runtime/option.js';
import { snakeCase } from '../runtime/options.js';
import { closest } from '../runtime/suggestion.js';
import { ApiError, invalidError } from './api-error.js';
import { adviceFor } from './foreign-fields.js';

/** null counts as absent, as in OpenAI's interface. */
type Absent = undefined;

/**
 * Reads fields by name. Each method throws 400 with the field, the expected value and the received
 * value.
 */
export class RequestFields {
  private readonly readNames = new Set<string>();

  /** `location`: prefix of field names in messages, such as "stream_options.". */
  constructor(
    private readonly values: JsonObject,
    private readonly location = '',
  ) {}

  /** Returns the value without a check. */
  any(name: string): JsonValue | Absent {
    this.readNames.add(name);
    return Object.hasOwn(this.values, name) ? (this.values[name] ?? undefined) : undefined;
  }

  /**
   * Returns the options of `declared` that the request sets. Fields have the names in snake_case.
   */
  declared<D extends Declared>(declared: D): Partial<Settings<D>> {
    const read: Record<string, unknown> = {};
    for (const [name, option] of Object.entries(declared)) {
      const field = snakeCase(name);
      const value = this.any(field);
      if (value !== undefined) read[name] = this.read(field, option, value);
    }
    return read as Partial<Settings<D>>;
  }

  /** Returns an integer from `min` to `maximum`. */
  integer(name: string, min: number, maximum = Number.MAX_SAFE_INTEGER): number | Absent {
    const value = this.any(name);
    const max = maximum === Number.MAX_SAFE_INTEGER ? undefined : maximum;
    return value === undefined ? value : this.read(name, integer('', { min, max }), value);
  }

  flag(name: string): boolean | Absent {
    const value = this.any(name);
    if (value === undefined || typeof value === 'boolean') return value;
    throw this.wrongError(name, 'true or false', formatValue(value));
  }

  text(name: string): string | Absent {
    const value = this.any(name);
    if (value === undefined || typeof value === 'string') return value;
    throw this.wrongError(name, 'a string', formatValue(value));
  }

  /** Returns a non-empty text, or a list of at most `max` non-empty texts. */
  texts(name: string, max: number): string[] | Absent {
    const value = this.any(name);
    if (value === undefined) return undefined;
    const list = Array.isArray(value) ? value : [value];
    const isGood = list.every((item) => typeof item === 'string' && item !== '');
    if (isGood && list.length <= max) return list as string[];
    const expected = `a string, or a list of at most ${max}, without an empty string`;
    throw this.wrongError(name, expected, formatValue(value));
  }

  /** Returns a list of token ids. */
  tokens(name: string, vocabSize: number): number[] | Absent {
    const value = this.any(name);
    if (value === undefined) return undefined;
    if (Array.isArray(value) && value.every((item) => isInteger(item, 0, vocabSize - 1))) {
      return value;
    }
    throw this.wrongError(name, `a list of tokens below ${vocabSize}`, formatValue(value));
  }

  object(name: string): JsonObject | Absent {
    const value = this.any(name);
    if (value === undefined) return undefined;
    if (!isObject(value)) throw this.wrongError(name, 'an object', formatValue(value));
    if (isWithin(value, MAX_LEVELS)) return value;
    throw this.wrongError(name, `at most ${MAX_LEVELS} levels of nesting`, 'more');
  }

  /** Returns a reader of the fields of an object. */
  inside(name: string): RequestFields | Absent {
    const value = this.object(name);
    return value && new RequestFields(value, `${this.location}${name}.`);
  }

  /** Throws 400 for the first field that was not read. */
  requireKnown(): void {
    for (const name of Object.keys(this.values)) {
      if (this.readNames.has(name) || this.values[name] === null) continue;
      const param = this.location + name.slice(0, 60);
      const meant = closest(name, [...this.readNames]);
      const hint = adviceFor(param) ?? (meant ? `Did you mean "${meant}"?` : '');
      const message = `"${param}" is an unknown parameter. ${hint}`.trimEnd();
      throw new ApiError(400, message, { param, code: 'unknown_parameter' });
    }
  }

  private read<Out>(name: string, option: Option<unknown, Out>, value: JsonValue): Out {
    try {
      return option.read(name, value);
    } catch (error) {
      if (!(error instanceof DsError)) throw error;
      throw this.wrongError(name, error.expected, error.got);
    }
  }

  private wrongError(name: string, expected: string, got: string): ApiError {
    return invalidError(this.location + name, expected, got);
  }
}

/** Maximum nesting of an object. Copying and rendering it recurse once a level. */
export const MAX_LEVELS = 64;

/** Returns whether `value` has at most `levels` levels. */
export function isWithin(value: JsonValue | undefined, levels: number): boolean {
  if (typeof value !== 'object' || value === null) return true;
  return levels > 0 && Object.values(value).every((item) => isWithin(item, levels - 1));
}

export function isInteger(value: unknown, min: number, max: number): value is number {
  return typeof value === 'number' && Number.isSafeInteger(value) && value >= min && value <= max;
}
