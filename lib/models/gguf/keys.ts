// Reads typed values from the metadata of a GGUF file.
import type { JsonValue } from '../../../types/json.js';
import type { GgufHeader, GgufTensor, GgufValue } from '../../checkpoint/index.js';
import { DsError } from '../../errors.js';
import { formatJson } from '../../runtime/parse-json.js';

/** The keys of a file; names without a prefix belong to its architecture. */
export class GgufKeys {
  private constructor(
    readonly path: string,
    private readonly metadata: GgufHeader['metadata'],
    readonly architecture: string,
    /** Returns the values of a small tensor. */
    readonly read: (tensor: GgufTensor) => readonly number[],
  ) {}

  /** Returns the keys of a file. Throws DS_CHECKPOINT if it names no architecture. */
  static of(path: string, { metadata, read }: GgufHeader): GgufKeys {
    const name = metadata.get('general.architecture');
    if (typeof name === 'string') return new GgufKeys(path, metadata, name, read);
    const op = `${path}: general.architecture`;
    const got = formatJson((name ?? null) as JsonValue);
    throw new DsError({ code: 'DS_CHECKPOINT', op, expected: 'the name of an architecture', got });
  }

  /** Returns the value of a key with its full name; null if it is absent. */
  getFullKey(key: string): GgufValue | null {
    return this.metadata.get(key) ?? null;
  }

  /**
   * Returns the value of a key of the architecture; null if it is absent. Throws DS_CHECKPOINT if
   * layers differ.
   */
  get(key: string): GgufValue | null {
    const value = this.getFullKey(`${this.architecture}.${key}`);
    // Some files list a number for each layer.
    if (!Array.isArray(value) || value.length === 0) return value;
    const [first] = value as readonly GgufValue[];
    if (value.every((item) => item === first)) return first as GgufValue;
    throw this.keyError(key, 'the same number in all layers', value);
  }

  /** Returns the list of a key; null if it is absent, or one value for all layers. */
  list(key: string): readonly GgufValue[] | null {
    const value = this.getFullKey(`${this.architecture}.${key}`);
    return Array.isArray(value) ? (value as readonly GgufValue[]) : null;
  }

  /**
   * Returns a number of 0 or more, or `fallback` if the key is absent. Throws DS_CHECKPOINT for
   * another value.
   */
  number(key: string, fallback: number): number {
    const value = this.get(key) ?? fallback;
    if (typeof value === 'number' && Number.isFinite(value) && value >= 0) return value;
    throw this.keyError(key, 'a number of 0 or more', value);
  }

  /**
   * Returns a boolean, or `fallback` if the key is absent. Throws DS_CHECKPOINT for another value.
   */
  flag(key: string, fallback: boolean): boolean {
    const value = this.get(key) ?? fallback;
    if (typeof value === 'boolean') return value;
    throw this.keyError(key, 'true or false', value);
  }

  /** Returns a positive number. Throws DS_CHECKPOINT for another value, or none. */
  positive(key: string): number {
    const value = this.get(key);
    if (typeof value === 'number' && Number.isFinite(value) && value > 0) return value;
    throw this.keyError(key, 'a positive number', value);
  }

  /** Returns a positive integer. Throws DS_CHECKPOINT for another value, or none. */
  size(key: string): number {
    const value = this.positive(key);
    if (Number.isSafeInteger(value)) return value;
    throw this.keyError(key, 'a positive integer', value);
  }

  /** Returns the DS_CHECKPOINT for a key. */
  keyError(key: string, expected: string, got: GgufValue | null): DsError {
    const fullKey = key.startsWith('general.') ? key : `${this.architecture}.${key}`;
    const shown = got === null ? 'nothing' : formatJson(got as JsonValue);
    return new DsError({
      code: 'DS_CHECKPOINT',
      op: `${this.path}: ${fullKey}`,
      expected,
      got: shown,
      hint: 'docs/gguf.md lists what is supported. A folder of safetensors may exist for this model.',
    });
  }
}
