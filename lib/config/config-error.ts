// A DS_CONFIG error with its key and its location in the file.
import { DsError } from '../errors.js';

/** A location in a text; both numbers start at 1. */
export interface SourceLocation {
  readonly line: number;
  readonly column: number;
}

interface ConfigErrorFields {
  /** The dotted path of the key, as the user wrote it; "" for the file as a whole. */
  path: string;
  /** The file, or "base64"; null for an object. */
  file: string | null;
  location: SourceLocation | null;
  expected: string;
  got: string;
  hint?: string;
  cause?: unknown;
}

/** A DS_CONFIG error. `op` is "file:line:column: dotted.path", without the unknown parts. */
export class ConfigError extends DsError {
  readonly path: string;
  readonly file: string | null;
  readonly location: SourceLocation | null;

  constructor(fields: ConfigErrorFields) {
    const { path, file, location, ...rest } = fields;
    super({ code: 'DS_CONFIG', op: formatLocation(file, location, path) || 'config', ...rest });
    this.path = path;
    this.file = file;
    this.location = location;
  }
}

/**
 * Returns the first of several errors. Its hint adds `guesses`, and the number of other errors.
 * `where` is a sentence that says how to see them.
 */
export function firstError(
  errors: readonly ConfigError[],
  where: string,
  guesses: readonly string[] = [],
): ConfigError {
  const [first, ...rest] = errors as readonly [ConfigError, ...ConfigError[]];
  if (rest.length === 0 && guesses.length === 0) return first;
  const more = rest.length > 0 ? [`(${rest.length} more: ${where})`] : [];
  const hint = [first.hint, ...guesses, ...more].filter(Boolean).join(' ');
  const { path, file, location, expected, got, cause } = first;
  return new ConfigError({ path, file, location, expected, got, cause, hint });
}

/** Returns "ds_config.json:12:5: zero_optimization.stage", without parts that are unknown. */
export function formatLocation(
  file: string | null,
  location: SourceLocation | null,
  path: string,
): string {
  const position = location && file ? `${file}:${location.line}:${location.column}` : file;
  return [position, path].filter((part) => part !== null && part !== '').join(': ');
}

/** Characters of a text, and items of a list, that a message shows. */
const [SHOWN_LENGTH, SHOWN_ITEMS] = [200, 8];

/** Returns `text`, or the beginning of a long text with its length. */
export function shorten(text: string): string {
  if (text.length <= SHOWN_LENGTH) return text;
  return `${text.slice(0, SHOWN_LENGTH)}... (${text.length} characters)`;
}

/** Formats a value for a message, in bounded length: an inline configuration may be of any size. */
export function formatConfigValue(value: unknown): string {
  if (ArrayBuffer.isView(value)) return `a ${value.constructor.name}`;
  if (Array.isArray(value)) {
    const items = value.slice(0, SHOWN_ITEMS).map(formatConfigValue).join(', ');
    return value.length > SHOWN_ITEMS ? `[${items}, ... (${value.length} items)]` : `[${items}]`;
  }
  if (typeof value === 'object' && value !== null) {
    return `an object with ${Object.keys(value).length} keys`;
  }
  if (typeof value === 'function') return 'a function';
  return typeof value === 'string' ? JSON.stringify(shorten(value)) : shorten(String(value));
}
