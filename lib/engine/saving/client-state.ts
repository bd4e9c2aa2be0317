// What a program keeps in a checkpoint: values that come back from JSON as they were.
import { DsError } from '../../errors.js';

/**
 * Throws DS_ARGUMENT unless it is an object, as a load returns it, of values that come back: see
 * requireJson.
 */
export function requireClientState(value: unknown): void {
  const isObject = typeof value === 'object' && value !== null && !Array.isArray(value);
  requireJson('clientState', value);
  if (isObject) return;
  const got = Array.isArray(value) ? 'an array' : JSON.stringify(value);
  throw new DsError({
    code: 'DS_ARGUMENT',
    op: 'clientState',
    expected: 'an object, such as { epoch: 3 }',
    got,
  });
}

/**
 * Throws DS_ARGUMENT naming the first value inside `value` that JSON would drop or change: NaN and
 * infinities (null), a function, a bigint, a Map, a typed array. Properties that are undefined
 * count as absent; a toJSON() speaks for itself.
 */
export function requireJson(place: string, value: unknown, outer: readonly object[] = []): void {
  if (value === null || typeof value === 'string' || typeof value === 'boolean') return;
  if (typeof value === 'number') {
    if (Number.isFinite(value)) return;
    throw refused(place, String(value), 'Leave it out, or save null.');
  }
  if (typeof value !== 'object') throw refused(place, `a ${typeof value}`);
  if (outer.includes(value)) throw refused(place, 'an object that contains itself');
  const within = [...outer, value];
  if (typeof (value as { toJSON?: unknown }).toJSON === 'function') return;
  if (Array.isArray(value)) {
    for (const [i, item] of value.entries()) requireJson(`${place}[${i}]`, item, within);
    return;
  }
  const prototype = Object.getPrototypeOf(value);
  if (prototype !== null && Object.getPrototypeOf(prototype) !== null) {
    throw refused(place, `a ${prototype.constructor?.name ?? 'class'}`, 'Save plain objects.');
  }
  for (const [name, item] of Object.entries(value)) {
    if (item !== undefined) requireJson(`${place}.${name}`, item, within);
  }
}

function refused(op: string, got: string, hint = ''): DsError {
  const expected = 'a value that JSON keeps';
  return new DsError({ code: 'DS_ARGUMENT', op, expected, got, hint });
}
