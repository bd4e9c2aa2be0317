// A DS_CONFIG error that knows its key and its place in the file.
import { DsError } from '../errors.js';

/** Where something stands in a text; both count from 1. */
export interface Place {
  readonly line: number;
  readonly column: number;
}

export interface ConfigErrorFields {
  /** The dotted path of the key, as the user wrote it; "" for the file as a whole. */
  path: string;
  /** The file, or "base64"; null for an object. */
  file: string | null;
  place: Place | null;
  expected: string;
  got: string;
  hint?: string;
  cause?: unknown;
}

/** `op` is "file:line:column: dotted.path", or the parts of it that there are. */
export class ConfigError extends DsError {
  readonly path: string;
  readonly file: string | null;
  readonly place: Place | null;

  constructor(fields: ConfigErrorFields) {
    const { path, file, place, ...rest } = fields;
    super({ code: 'DS_CONFIG', op: whereabouts(file, place, path) || 'config', ...rest });
    this.path = path;
    this.file = file;
    this.place = place;
  }
}

/** "ds_config.json:12:5: zero_optimization.stage"; parts that are missing are left out. */
export function whereabouts(file: string | null, place: Place | null, path: string): string {
  const position = place && file ? `${file}:${place.line}:${place.column}` : file;
  return [position, path].filter((part) => part !== null && part !== '').join(': ');
}

/** `value` as a message shows it; an object in an inline configuration may hold anything. */
export function shown(value: unknown): string {
  if (typeof value === 'object' && value !== null && !Array.isArray(value)) {
    return `an object with ${Object.keys(value).length} keys`;
  }
  if (Array.isArray(value)) return `[${value.map(shown).join(', ')}]`;
  if (typeof value === 'function') return 'a function';
  return typeof value === 'string' ? JSON.stringify(value) : String(value);
}
