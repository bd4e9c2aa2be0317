// Reads the fields of a request by type and bounds, and refuses unread fields.
import type { JsonObject, JsonValue } from '../../types/json.js';
import { DsError } from '../errors.js';
import { formatValue } from '../runtime/format-value.js';
import { isObject } from '../runtime/is-object.js';
import { type Declared, integer, type Option, type Settings } from '../runtime/option.js';
import { snakeCase } from '../runtime/options.js';
import { closest } from '../runtime/suggestion.js';
import { ApiError, invalid } from './api-error.js';

/** null counts as absent, as in OpenAI's interface. */
type Absent = undefined;

/** Each reader throws 400 with the field, the expected value and the received value. */
export class RequestFields {
  private readonly asked = new Set<string>();

  /** `location`: prefix of field names in messages, such as "stream_options.". */
  constructor(
    private readonly values: JsonObject,
    private readonly location = '',
  ) {}

  /** The value as it is. */
  any(name: string): JsonValue | Absent {
    this.asked.add(name);
    return Object.hasOwn(this.values, name) ? (this.values[name] ?? undefined) : undefined;
  }

  /** The options of `declared` that the request has, by their names in snake_case. */
  declared<D extends Declared>(declared: D): Partial<Settings<D>> {
    const read: Record<string, unknown> = {};
    for (const [name, option] of Object.entries(declared)) {
      const field = snakeCase(name);
      const value = this.any(field);
      if (value !== undefined) read[name] = this.read(field, option, value);
    }
    return read as Partial<Settings<D>>;
  }

  /** A whole number from `min` to `maximum`. */
  integer(name: string, min: number, maximum = Number.MAX_SAFE_INTEGER): number | Absent {
    const value = this.any(name);
    const max = maximum === Number.MAX_SAFE_INTEGER ? undefined : maximum;
    return value === undefined ? value : this.read(name, integer('', { min, max }), value);
  }

  flag(name: string): boolean | Absent {
    const value = this.any(name);
    if (value === undefined || typeof value === 'boolean') return value;
    throw this.wrong(name, 'true or false', formatValue(value));
  }

  text(name: string): string | Absent {
    const value = this.any(name);
    if (value === undefined || typeof value === 'string') return value;
    throw this.wrong(name, 'a string', formatValue(value));
  }

  /** A non-empty text, or a list of at most `max` non-empty texts. */
  texts(name: string, max: number): string[] | Absent {
    const value = this.any(name);
    if (value === undefined) return undefined;
    const list = Array.isArray(value) ? value : [value];
    const isGood = list.every((item) => typeof item === 'string' && item !== '');
    if (isGood && list.length <= max) return list as string[];
    const expected = `a string, or a list of at most ${max}, without an empty string`;
    throw this.wrong(name, expected, formatValue(value));
  }

  /** A list of tokens. */
  tokens(name: string, vocabSize: number): number[] | Absent {
    const value = this.any(name);
    if (value === undefined) return undefined;
    if (Array.isArray(value) && value.every((item) => isInteger(item, 0, vocabSize - 1))) {
      return value;
    }
    throw this.wrong(name, `a list of tokens below ${vocabSize}`, formatValue(value));
  }

  object(name: string): JsonObject | Absent {
    const value = this.any(name);
    if (value === undefined) return undefined;
    if (!isObject(value)) throw this.wrong(name, 'an object', formatValue(value));
    if (isWithin(value, LEVELS)) return value;
    throw this.wrong(name, `at most ${LEVELS} levels of nesting`, 'more');
  }

  /** The fields of an object. */
  inside(name: string): RequestFields | Absent {
    const value = this.object(name);
    return value && new RequestFields(value, `${this.location}${name}.`);
  }

  /** Throws 400 for the first field without a reader. */
  requireKnown(): void {
    for (const name of Object.keys(this.values)) {
      if (this.asked.has(name) || this.values[name] === null) continue;
      const meant = closest(name, [...this.asked]);
      const hint = meant ? ` Did you mean "${meant}"?` : '';
      const param = this.location + name.slice(0, 60);
      const message = `"${param}" is an unknown parameter.${hint}`;
      throw new ApiError(400, message, { param, code: 'unknown_parameter' });
    }
  }

  private read<Out>(name: string, option: Option<unknown, Out>, value: JsonValue): Out {
    try {
      return option.read(name, value);
    } catch (error) {
      if (!(error instanceof DsError)) throw error;
      throw this.wrong(name, error.expected, error.got);
    }
  }

  private wrong(name: string, expected: string, got: string): ApiError {
    return invalid(this.location + name, expected, got);
  }
}

/** Copying and rendering an object recurse once a level. */
export const LEVELS = 64;

/** Returns whether `value` has at most `levels` levels. */
export function isWithin(value: JsonValue | undefined, levels: number): boolean {
  if (typeof value !== 'object' || value === null) return true;
  return levels > 0 && Object.values(value).every((item) => isWithin(item, levels - 1));
}

export function isInteger(value: unknown, min: number, max: number): value is number {
  return typeof value === 'number' && Number.isSafeInteger(value) && value >= min && value <= max;
}
