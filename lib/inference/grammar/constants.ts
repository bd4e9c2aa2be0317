// Tests values of `enum` and `const` against the other keywords of their schema.
import { Ajv2020 } from 'ajv/dist/2020.js';
import { argumentError } from '../../runtime/input-errors.js';
import { errorMessage } from '../../runtime/system-error.js';
import { inexpressibleError, isAnnotation, type Schema, typesOf } from './schema-merge.js';

type Keywords = { readonly [keyword: string]: unknown };

/**
 * Returns a function that tests a value of `enum` or `const` against the other keywords of the
 * schema.
 */
export function restMatcher(
  schema: Keywords,
  document: Schema,
  path: string,
): (value: unknown) => boolean {
  const { enum: listed, const: _, ...rest } = schema;
  const asserted = Object.keys(rest).filter((keyword) => !isAnnotation(keyword));
  const isListed = (value: unknown): boolean =>
    !Array.isArray(listed) || listed.some((item) => JSON.stringify(item) === JSON.stringify(value));
  if (asserted.length === 0) return isListed;
  if (asserted.length === 1 && asserted[0] === 'type') {
    const types = typesOf(schema) ?? [];
    return (value) => isListed(value) && types.some((type) => isOfType(value, type));
  }
  if (JSON.stringify(rest).includes('"format"')) {
    throw inexpressibleError(`${path}/format`, 'format', 'enum and const list the values');
  }
  const { pattern, ...others } = rest;
  const patterns = [pattern ?? []].flat().map((item) => ({ pattern: item }));
  const { $defs, definitions } = typeof document === 'object' ? document : {};
  const checked = { ...others, allOf: [{}, ...patterns], $defs, definitions };
  try {
    const validate = new Ajv2020({ strict: false, logger: false }).compile(
      JSON.parse(JSON.stringify(checked)),
    );
    return (value) => isListed(value) && validate(value) === true;
  } catch (error) {
    throw argumentError(
      `format schema ${path}`,
      'keywords that apply to constants',
      errorMessage(error),
    );
  }
}

function isOfType(value: unknown, type: string): boolean {
  if (type === 'null') return value === null;
  if (type === 'array') return Array.isArray(value);
  if (type === 'integer') return Number.isInteger(value);
  if (type === 'object')
    return typeof value === 'object' && value !== null && !Array.isArray(value);
  return typeof value === type;
}
