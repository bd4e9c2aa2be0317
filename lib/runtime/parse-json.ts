// Parses JSON of foreign files with bounded nesting, because code that visits values recurses.
import { formatValue } from './format-value.js';

/** Levels of lists and objects; known files have fewer than 20. */
const DEPTH = 200;
const SHOWN = 200;

/** Returns the text of a file without the byte order mark that editors of Windows write. */
export const withoutBom = (text: string): string =>
  text.startsWith('\ufeff') ? text.slice(1) : text;

/**
 * Returns JSON.parse() of a text that may begin with a byte order mark. Throws an Error for invalid
 * syntax, and for more than 200 levels.
 */
export function parseJson(text: string): unknown {
  const value: unknown = JSON.parse(withoutBom(text));
  requireShallow(value);
  return value;
}

/** Throws an Error for more than 200 levels of nesting, and for cycles. */
export function requireShallow(value: unknown): void {
  let level: unknown[] = [value];
  for (let depth = 0; level.length > 0; ++depth) {
    if (depth > DEPTH) throw new Error(`more than ${DEPTH} levels of nesting`);
    const next: unknown[] = [];
    for (const value of level) {
      if (typeof value !== 'object' || value === null || ArrayBuffer.isView(value)) continue;
      for (const item of Object.values(value)) next.push(item);
    }
    level = next;
  }
}

/** Returns the JSON of a value in at most 200 characters, for messages. */
export function formatJson(value: unknown): string {
  try {
    return JSON.stringify(value)?.slice(0, SHOWN) ?? 'nothing';
  } catch {
    return formatValue(value);
  }
}
