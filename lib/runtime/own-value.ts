/**
 * Returns `record[key]`; undefined for names such as "constructor", which every object inherits.
 */
export const ownValue = <T>(record: Readonly<Record<string, T>>, key: string): T | undefined =>
  Object.hasOwn(record, key) ? record[key] : undefined;
