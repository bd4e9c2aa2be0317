// Checks types and ranges of single keys by schema.json and ajv. Errors name the location and the
// fix.

import type { ErrorObject, ValidateFunction } from 'ajv/dist/2020.js';
import { required } from '../runtime/required.js';
import { closest } from '../runtime/suggestion.js';
import { formatConfigValue } from './config-error.js';
import type { Draft } from './draft.js';
import { quotingHint } from './hjson.js';
import type { Path } from './parse.js';
import { annotations, choices, propertyOf, resolveSchema, type Schema, typesOf } from './schema.js';

/** Maximum number of reported violations: a list may have a million invalid items. */
const MAX_LISTED = 100;

interface Validators {
  compile(schema: Schema): ValidateFunction;
  /** Validators by key, and by the alternative that the key's value selects. */
  readonly known: Map<string, ValidateFunction>;
}

const compiled = new WeakMap<Schema, Validators>();

/** Loads ajv on first use, because a program may read no configuration. */
function validatorsOf(schema: Schema): Validators {
  const known = compiled.get(schema);
  if (known) return known;
  const { Ajv2020 } = require('ajv/dist/2020.js') as typeof import('ajv/dist/2020.js');
  const ajv = new Ajv2020({
    allErrors: true,
    discriminator: true,
    strict: true,
    strictTypes: false,
    strictRequired: false,
    verbose: true,
    // The schema is checked in tests; each validator runs a few times.
    validateSchema: false,
    code: { optimize: false },
  });
  for (const [keyword, schemaType] of Object.entries(annotations)) {
    ajv.addKeyword({ keyword, schemaType });
  }
  const validators = { compile: ajv.compile.bind(ajv), known: new Map() };
  compiled.set(schema, validators);
  return validators;
}

/**
 * Returns a validator for `key` of `schema`. Compiling the whole schema takes longer than starting
 * Node, so only keys and alternatives of the user's file are compiled.
 */
function validator(schema: Schema, key: string, value: unknown): ValidateFunction {
  const { compile, known } = validatorsOf(schema);
  const property = required(propertyOf(schema, key));
  const tag = property.discriminator?.propertyName;
  const chosen = tag ? (resolveSchema(property, value).properties?.[tag]?.const ?? '') : '';
  const name = `${key} ${chosen}`;
  const cached = known.get(name);
  if (cached) return cached;
  const ownSchema = tag ? withAlternative(property, tag, chosen) : property;
  const compiled = compile({
    ...schema,
    properties: { [key]: ownSchema },
    additionalProperties: true,
  });
  known.set(name, compiled);
  return compiled;
}

/**
 * Returns `property` with only the tag of each alternative other than `chosen`, which compiles
 * faster.
 */
function withAlternative(property: Schema, tag: string, chosen: unknown): Schema {
  const oneOf = property.oneOf?.map((option): Schema => {
    const tags = required(option.properties?.[tag]);
    return tags.const === chosen ? option : { properties: { [tag]: tags } };
  });
  return { ...property, oneOf };
}

/**
 * Refuses every violation of the schema in `draft`. The caller has already replaced or refused
 * "auto".
 */
export function checkSchema(draft: Draft): void {
  const violations: ErrorObject[] = [];
  for (const [key, value] of Object.entries(draft.value)) {
    const check = validator(draft.schema, key, value);
    if (!check(draft.value)) violations.push(...(check.errors ?? []));
  }
  const errors = violations.filter((error) => error.data !== 'auto' && !isRepetition(error));
  for (const error of errors.slice(0, MAX_LISTED)) refuseViolation(draft, error);
  draft.visit(({ section, key, path, schema }) => {
    const value = section[key];
    const isInteger = typeof value === 'number' && typesOf(schema).includes('integer');
    if (!isInteger || Math.abs(value) <= 2 ** 63) return;
    draft.refuse(path, { expected: 'an integer of at most 64 bits', got: String(value) });
  });
}

/**
 * Returns whether ajv reports the same violation by another error: for a whole anyOf, or for a
 * required `type`.
 */
function isRepetition(error: ErrorObject): boolean {
  const { keyword, params } = error;
  const missing = keyword === 'discriminator' && params.tagValue === undefined;
  return missing || error.schemaPath.includes('/anyOf/');
}

function refuseViolation(draft: Draft, error: ErrorObject): void {
  const path: string[] = error.instancePath
    .split('/')
    .slice(1)
    .map((part) => part.replaceAll('~1', '/').replaceAll('~0', '~'));
  if (error.keyword === 'required') path.push(error.params.missingProperty);
  if (error.keyword === 'discriminator') path.push(error.params.tag);
  const got = error.keyword === 'discriminator' ? error.params.tagValue : error.data;
  draft.refuse(path, {
    expected: expectation(error),
    got: error.keyword === 'required' ? 'nothing' : formatConfigValue(got),
    hint: hintFor(draft, path, { error, got }),
  });
}

function expectation(error: ErrorObject): string {
  const { params } = error;
  switch (error.keyword) {
    case 'type':
      return [params.type].flat().map(article).join(' or ');
    case 'enum':
    case 'discriminator':
      return names(error).map(formatConfigValue).join(', ');
    case 'anyOf':
    case 'oneOf':
      return ((error.schema ?? []) as Schema[]).map(alternative).join(' or ');
    case 'minimum':
    case 'exclusiveMinimum':
    case 'maximum':
    case 'exclusiveMaximum':
      return `a value ${params.comparison} ${params.limit}`;
    case 'minItems':
    case 'maxItems':
      return `${params.limit} items`;
    case 'required':
      return 'a value';
    default:
      return error.message ?? error.keyword;
  }
}

function hintFor(
  draft: Draft,
  path: Path,
  { error, got }: { error: ErrorObject; got: unknown },
): string {
  if (typeof got !== 'string') return '';
  if (Number.isFinite(Number(got)) && error.keyword === 'type') {
    return `Write ${got} without quotes.`;
  }
  const guess = closest(got, names(error).filter(isString));
  if (guess) return `Did you mean "${guess}"?`;
  return draft.document.unquoted(draft.pathInFile(path)) ? quotingHint(got) : '';
}

/** Returns the values that an enum or a discriminator allows. */
function names(error: ErrorObject): readonly unknown[] {
  if (error.keyword === 'enum') return error.params.allowedValues;
  if (error.keyword !== 'discriminator') return [];
  const schema = error.parentSchema as Schema;
  const refused = (schema.oneOf ?? []).flatMap((option) => {
    const type = resolveSchema(option, undefined).properties?.[error.params.tag];
    return Object.keys(type?.dsUnsupportedValues ?? {});
  });
  return choices(schema, error.params.tag).filter((name) => !refused.includes(String(name)));
}

function alternative(schema: Schema): string {
  const resolved = resolveSchema(schema, undefined);
  if ('const' in resolved) return formatConfigValue(resolved.const);
  const min = resolved.minimum === undefined ? '' : ` >= ${resolved.minimum}`;
  return `${typesOf(resolved).map(article).join(' or ')}${min}`;
}

function isString(value: unknown): value is string {
  return typeof value === 'string';
}

function article(type: string): string {
  if (type === 'null') return 'null';
  return /^[aeiou]/.test(type) ? `an ${type}` : `a ${type}`;
}
