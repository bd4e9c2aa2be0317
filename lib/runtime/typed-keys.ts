// Object.keys() and Object.entries() for tables with known keys.

/** Returns the keys of a table: Object.keys() forgets their type. */
export function keysOf<Key extends string>(table: Readonly<Partial<Record<Key, unknown>>>): Key[] {
  return Object.keys(table) as Key[];
}

/** Returns the pairs of key and value of a table: Object.entries() forgets the type of the key. */
export function entriesOf<Key extends string, Value>(
  table: Readonly<Partial<Record<Key, Value>>>,
): [Key, Value][] {
  return Object.entries(table) as [Key, Value][];
}
