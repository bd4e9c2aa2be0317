// Copies the client state of a checkpoint, and refuses values that JSON cannot restore.
import type { JsonObject, JsonValue } from '../../../types/json.js';
import { DsError } from '../../errors.js';
import { isObject, isPlainObject } from '../../runtime/is-object.js';

/** Maximum nesting of objects. JSON.stringify() and JSON.parse() recurse for each level. */
const MOST_LEVELS = 1000;
/** Maximum characters of a path in an error. */
const SHOWN = 120;

/**
 * Returns a copy of `value` as JSON stores it, after toJSON() and without undefined properties.
 *
 * Throws DS_ARGUMENT if it is not an object, and for the first nested value that JSON drops or
 * changes. Examples: NaN, a function, a bigint, a Map, a typed array.
 */
export function jsonObject(place: string, value: unknown, example: string): JsonObject {
  const kept = keptOf(place, '', value, []);
  if (isObject(kept)) return kept;
  throw new DsError({
    code: 'DS_ARGUMENT',
    op: place,
    expected: `an object, such as ${example}`,
    got: Array.isArray(kept) ? 'an array' : String(JSON.stringify(kept)),
  });
}

/** `outer`: the objects that contain `value`, the property `name` of the last one. */
function keptOf(
  place: string,
  name: string,
  value: unknown,
  outer: readonly object[],
): JsonValue | undefined {
  if (value === null || typeof value === 'string' || typeof value === 'boolean') return value;
  if (typeof value === 'number') {
    if (Number.isFinite(value)) return value;
    throw refused(place, String(value), 'Leave it out, or save null.');
  }
  if (typeof value !== 'object') throw refused(place, `a ${typeof value}`);
  if (outer.includes(value)) throw refused(place, 'an object that contains itself');
  if (outer.length === MOST_LEVELS) {
    const expected = `at most ${MOST_LEVELS} levels of nested objects`;
    throw refused(place, 'a deeper object', '', expected);
  }
  const within = [...outer, value];
  const { toJSON } = value as Partial<Speaker>;
  if (typeof toJSON === 'function') return saidBy(place, name, { value, toJSON, within });
  if (Array.isArray(value)) {
    return Array.from(value, (item, i) => {
      const kept = keptOf(`${place}[${i}]`, `${i}`, item, within);
      if (kept === undefined) throw refused(`${place}[${i}]`, 'a toJSON() that returns undefined');
      return kept;
    });
  }
  if (!isPlainObject(value)) {
    const name = Object.getPrototypeOf(value).constructor?.name ?? 'class';
    throw refused(place, `a ${name}`, 'Save plain objects.');
  }
  const kept = Object.entries(value).map(([key, item]) => {
    const of = item === undefined ? undefined : keptOf(`${place}.${key}`, key, item, within);
    return [key, of] as const;
  });
  return Object.fromEntries(kept.filter(([, of]) => of !== undefined)) as JsonObject;
}

interface Speaker {
  value: object;
  toJSON: (name: string) => unknown;
  within: readonly object[];
}

/** Returns the checked result of toJSON(), or undefined. */
function saidBy(
  place: string,
  name: string,
  { value, toJSON, within }: Speaker,
): JsonValue | undefined {
  if (value instanceof Date && Number.isNaN(value.getTime())) {
    throw refused(place, 'an invalid Date', 'Leave it out, or save null.');
  }
  const said: unknown = toJSON.call(value, name);
  if (said === undefined) return undefined;
  // toJSON() returned its own object: check the properties.
  return keptOf(place, name, said === value ? { ...value, toJSON: undefined } : said, within);
}

function refused(
  place: string,
  got: string,
  hint = '',
  expected = 'a value that JSON can store',
): DsError {
  const op = place.length > SHOWN ? `${place.slice(0, SHOWN)}...` : place;
  return new DsError({ code: 'DS_ARGUMENT', op, expected, got, hint });
}
