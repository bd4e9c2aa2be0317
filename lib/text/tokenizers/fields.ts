// Reads parts of a tokenizer.json. Errors have the file and the path of the key.
import { formatValue } from '../../runtime/format-value.js';
import { dataError } from '../../runtime/input-errors.js';
import { isObject } from '../../runtime/is-object.js';

type Json = Record<string, unknown>;

/** Upper bound of ids, because vocabularies are arrays. */
export const MAX_IDS = 2 ** 24;

/** Maximum nesting of objects. */
const MAX_DEPTH = 100;

/** An object in a tokenizer.json, such as a normalizer. All methods throw DS_DATA. */
export class Fields {
  private readonly content: Json;

  /** `location` is the name of the object in errors. */
  constructor(
    readonly location: string,
    content: unknown,
    private readonly depth = 0,
  ) {
    if (depth > MAX_DEPTH)
      throw dataError(location, `at most ${MAX_DEPTH} objects in each other`, 'more');
    if (!isObject<Json>(content)) throw dataError(location, 'an object', formatValue(content));
    this.content = content;
  }

  /** Returns the value of a key; undefined if it is missing or null. */
  get(key: string): unknown {
    const value = Object.hasOwn(this.content, key) ? this.content[key] : undefined;
    return value === null ? undefined : value;
  }

  text(key: string, fallback?: string): string {
    const value = this.get(key) ?? fallback;
    if (typeof value === 'string') return value;
    throw this.wrongError(key, 'a string', value);
  }

  /** Returns a text of one character. */
  letter(key: string, fallback?: string): string {
    const value = this.text(key, fallback);
    if (Array.from(value).length === 1) return value;
    throw this.wrongError(key, 'one character', value);
  }

  flag(key: string, fallback: boolean): boolean {
    const value = this.get(key) ?? fallback;
    if (typeof value === 'boolean') return value;
    throw this.wrongError(key, 'true or false', value);
  }

  count(key: string, fallback: number): number {
    const value = this.get(key) ?? fallback;
    if (typeof value === 'number' && Number.isSafeInteger(value) && value >= 0) return value;
    throw this.wrongError(key, 'a whole number', value);
  }

  list(key: string): readonly unknown[] {
    const value = this.get(key) ?? [];
    if (Array.isArray(value)) return value;
    throw this.wrongError(key, 'a list', value);
  }

  /** Returns a nested object. */
  object(key: string): Fields {
    return new Fields(`${this.location}.${key}`, this.get(key), this.depth + 1);
  }

  /** Returns the values by key, converted by `change`. */
  map<T>(change: (value: unknown, key: string) => T): Map<string, T> {
    const entries = Object.entries(this.content);
    return new Map(entries.map(([key, value]) => [key, change(value, key)]));
  }

  /** Returns the objects in a list. */
  each(key: string): Fields[] {
    return this.list(key).map(
      (value, i) => new Fields(`${this.location}.${key}[${i}]`, value, this.depth + 1),
    );
  }

  wrongError(key: string, expected: string, value: unknown): Error {
    return dataError(`${this.location}.${key}`, expected, formatValue(value));
  }

  /** Calls the builder for the object's `type`. */
  build<T>(builders: ReadonlyMap<string, (fields: Fields) => T>): T {
    const type = this.get('type');
    const builder = typeof type === 'string' ? builders.get(type) : undefined;
    if (builder) return builder(this);
    throw this.wrongError('type', [...builders.keys()].join(', '), type);
  }
}

export const isId = (value: unknown): value is number =>
  typeof value === 'number' && Number.isInteger(value) && value >= 0 && value < MAX_IDS;

/** Returns an id of a vocabulary. Throws DS_DATA for another value. */
export function requireId(location: string, value: unknown): number {
  if (isId(value)) return value;
  throw dataError(location, `ids of [0, ${MAX_IDS})`, formatValue(value));
}
