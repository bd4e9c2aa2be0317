// Reads NAME=VALUE pairs that commas join, as command lines have them.

/**
 * Returns the values of `text` by name, added to `known`. Spaces around a pair do not count; a
 * value may contain "=". Returns null for another form, and for a name that occurs twice.
 */
export function readNameValues(
  text: string,
  known: Readonly<Record<string, string>> = {},
): Record<string, string> | null {
  const values = new Map(Object.entries(known));
  for (const pair of text.split(',')) {
    const [, name, value] = /^([^=]+)=(.+)$/s.exec(pair.trim()) ?? [];
    if (name === undefined || value === undefined || values.has(name)) return null;
    values.set(name, value);
  }
  return Object.fromEntries(values);
}
