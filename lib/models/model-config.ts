// Typed access to the keys of a config.json.
import type { JsonObject, JsonValue } from '../../types/json.js';
import { DsError } from '../errors.js';
import { isObject } from '../runtime/is-object.js';
import { formatJson } from '../runtime/parse-json.js';

/** No dimension of a tensor is larger. */
const MAX_SIZE = 2 ** 31 - 1;

/** Layers are objects: a larger number would fill the memory before any weight is read. */
export const MAX_LAYERS = 4096;

/** The keys of a config.json; errors name the file and the key. */
export class ModelConfig {
  constructor(
    /** Path of the file. */
    private readonly path: string,
    private readonly values: JsonObject,
    private readonly hint: string,
    /** Keys of the file that have other names than in most families. */
    private readonly names: Readonly<Record<string, string>> = {},
  ) {}

  /** Returns the value of `key`, or `fallback` if it is absent or null. */
  get(key: string, fallback: JsonValue = null): JsonValue {
    return this.values[this.nameOf(key)] ?? fallback;
  }

  /** Returns whether the file has `key`; null is a value. */
  has(key: string): boolean {
    return Object.hasOwn(this.values, this.nameOf(key));
  }

  /** Returns a view of the file in which `names` maps keys to the names in the file. */
  rename(names: Readonly<Record<string, string>>): ModelConfig {
    return new ModelConfig(this.path, this.values, this.hint, names);
  }

  /** Returns a view in which an absent key has the value of its other name. */
  alias(others: Readonly<Record<string, string>>): ModelConfig {
    const aliases = Object.entries(others).flatMap(([key, other]) =>
      Object.hasOwn(this.values, other) ? [[key, this.values[other]] as const] : [],
    );
    return this.withContent({ ...Object.fromEntries(aliases), ...this.values } as JsonObject);
  }

  /** Returns a copy in which `values` replace others. */
  withContent(values: JsonObject): ModelConfig {
    return new ModelConfig(this.path, { ...this.values, ...values }, this.hint, this.names);
  }

  private nameOf(key: string): string {
    return this.names[key] ?? key;
  }

  /**
   * Returns a positive integer up to `max`. Throws DS_CHECKPOINT for other values, and for an
   * absent key without a fallback.
   */
  size(key: string, fallback: number | null = null, max = MAX_SIZE): number {
    const value = this.get(key, fallback);
    const isSize = typeof value === 'number' && Number.isSafeInteger(value) && value > 0;
    if (isSize && value <= max) return value;
    throw this.refusalError(key, isSize ? `at most ${max}` : 'a positive integer', value);
  }

  /** Returns a positive number. Throws DS_CHECKPOINT for other values. */
  positive(key: string, fallback: number | null = null): number {
    const value = this.get(key, fallback);
    if (typeof value === 'number' && Number.isFinite(value) && value > 0) return value;
    throw this.refusalError(key, 'a positive number', value);
  }

  /** Returns a number in [0, 1). Throws DS_CHECKPOINT for other values. */
  fraction(key: string, fallback: number): number {
    const value = this.get(key, fallback);
    if (typeof value === 'number' && value >= 0 && value < 1) return value;
    throw this.refusalError(key, 'a number in [0, 1)', value);
  }

  /** Returns the keys of the configuration. */
  keys(): string[] {
    return Object.keys(this.values);
  }

  /** Returns a view with `defaults` for absent keys; null is a value, except for an object. */
  withDefaults(defaults: JsonObject): ModelConfig {
    const values = { ...this.values };
    for (const [key, value] of Object.entries(defaults)) {
      const name = this.nameOf(key);
      if (!Object.hasOwn(values, name) || (isObject(value) && values[name] === null)) {
        values[name] = value;
      }
    }
    return new ModelConfig(this.path, values, this.hint, this.names);
  }

  /** Returns true or false. Throws DS_CHECKPOINT for other values. */
  flag(key: string, fallback: boolean): boolean {
    const value = this.get(key, fallback);
    if (typeof value === 'boolean') return value;
    throw this.refusalError(key, 'true or false', value);
  }

  /**
   * Returns the keys of `value`, which belongs to this object. Throws DS_CHECKPOINT if it is not an
   * object.
   */
  with(key: string, value: JsonValue): ModelConfig {
    return new ModelConfig(this.path, { [key]: value }, this.hint).section(key);
  }

  /**
   * Returns the keys of an object; empty if it is absent. Throws DS_CHECKPOINT for other values.
   */
  section(key: string): ModelConfig {
    const value = this.get(key, {});
    if (isObject(value)) {
      return new ModelConfig(`${this.path}: ${key}`, value, this.hint);
    }
    throw this.refusalError(key, 'an object', value);
  }

  /**
   * Throws DS_CHECKPOINT unless the value of `key` is one of `values`; an absent one counts as the
   * first.
   */
  requireOneOf(key: string, values: readonly unknown[]): void {
    const value = this.get(key);
    if (value === null || values.includes(value)) return;
    throw this.refusalError(key, values.map(String).join(' or '), value);
  }

  /** Creates the error for `key`; `got` is a value of the file, or a description. */
  refusalError(key: string, expected: string, got: JsonValue, hint = this.hint): DsError {
    const gotText = got === null ? 'nothing' : formatJson(got);
    const op = `${this.path}: ${this.nameOf(key)}`;
    return new DsError({ code: 'DS_CHECKPOINT', op, expected, got: gotText, hint });
  }
}
