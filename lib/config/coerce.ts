// Converts values of a configuration that have another type or case, as DeepSpeed does: "500" to
// 500, 1 to true, "adamw" to "AdamW".
import { readSwitchWord } from '../runtime/switch-word.js';
import type { Draft } from './draft.js';
import { dottedPath } from './parse.js';
import { choices, isSection, lists, propertyOf, type Schema, typesOf } from './schema.js';

const INTEGER = /^[+-]?\d+(\.0*)?$/;
const NUMBER = /^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$/;

/**
 * Numbers for which DeepSpeed refuses true and false. For other numbers it reads them as 1 and 0.
 */
const NEVER_BOOLEAN = ['fp16.loss_scale', 'fp16.loss_scale_window', 'fp16.min_loss_scale'];

/**
 * Writes optimizer.type in the schema's case, because the keys of its section depend on it.
 */
export function canonicalOptimizer(draft: Draft): void {
  const { optimizer } = draft.value;
  const schema = propertyOf(draft.schema, 'optimizer');
  if (!schema || !isSection(optimizer)) return;
  optimizer.type = withDeclaredCase(optimizer.type, choices(schema, 'type'));
}

/**
 * Converts the values of `draft` to the types of the schema, with one notice for each changed
 * value.
 */
export function coerceValues(draft: Draft): void {
  draft.visit(({ section, key, path, schema }) => {
    const value = section[key];
    const name = dottedPath(path);
    if (schema.dsAnyCase || schema.dsSpellings) section[key] = canonicalSpelling(value, schema);
    else if (name === 'steps_per_print' && isInfinite(value)) section[key] = null;
    else if (typeof value === 'boolean' && NEVER_BOOLEAN.includes(name)) return;
    else {
      const changed = coerceValue(value, schema);
      if (changed === value) return;
      section[key] = changed;
      draft.note('coerced', path, `is read as ${changed}, not as ${JSON.stringify(value)}.`);
    }
  });
}

/** Returns `value` converted to a type of `schema`; unchanged if it fits or cannot be converted. */
export function coerceValue(value: unknown, schema: Schema): unknown {
  const types = typesOf(schema);
  if (lists(schema, value) || types.length === 0) return value;
  if (typeof value === 'string') return isText(schema) ? value : fromText(value, types);
  const numeric = types.includes('integer') || types.includes('number');
  if (typeof value === 'boolean' && !types.includes('boolean') && numeric) return Number(value);
  const isSwitch = types.includes('boolean') && !numeric;
  return isSwitch && (value === 0 || value === 1) ? value === 1 : value;
}

/** Returns whether a key accepts any text, not only that of an enum. */
function isText(schema: Schema): boolean {
  return [schema.type].flat().includes('string');
}

function fromText(text: string, types: readonly string[]): unknown {
  const trimmed = text.trim();
  if (types.includes('number') && NUMBER.test(trimmed)) return Number(trimmed);
  if (types.includes('integer') && INTEGER.test(trimmed)) return Number(trimmed);
  return (types.includes('boolean') ? readSwitchWord(trimmed.toLowerCase()) : null) ?? text;
}

function withDeclaredCase(value: unknown, names: readonly unknown[]): unknown {
  if (typeof value !== 'string') return value;
  const same = (name: unknown) => String(name).toLowerCase() === value.toLowerCase();
  return names.find(same) ?? value;
}

/** Returns the declared value for another case or spelling of it. */
function canonicalSpelling(value: unknown, { enum: names = [], ...schema }: Schema): unknown {
  const { dsAnyCase, dsSpellings = {} } = schema;
  const name = dsAnyCase ? withDeclaredCase(value, [...names, ...Object.keys(dsSpellings)]) : value;
  return typeof name === 'string' && Object.hasOwn(dsSpellings, name) ? dsSpellings[name] : name;
}

/** Returns whether a value stands for infinity, as Accelerate writes it. */
function isInfinite(value: unknown): boolean {
  if (typeof value === 'string') return /^(inf|infinity)$/i.test(value);
  return value === Number.POSITIVE_INFINITY;
}
