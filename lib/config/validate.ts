// Types and ranges of single keys: schema.json through ajv, with errors that name the place and the
// cure.
import { Ajv2020, type ErrorObject } from 'ajv/dist/2020.js';

import { DsError } from '../errors.js';
import type { ConfigDocument } from './parse.js';
import { annotations, configSchema, isSection, type Schema, type Section } from './schema.js';
import { closest } from './unknown-keys.js';

const ajv = new Ajv2020({
  allErrors: true,
  discriminator: true,
  strict: true,
  strictTypes: false,
  strictRequired: false,
  verbose: true,
});
for (const [keyword, schemaType] of Object.entries(annotations)) {
  ajv.addKeyword({ keyword, schemaType });
}
const check = ajv.compile(configSchema);

/** Every violation of the schema in `value`, as DS_CONFIG errors. */
export function schemaErrors(value: Section, document: ConfigDocument): DsError[] {
  if (check(value)) return [];
  return (check.errors ?? []).map((error) => toDsError(error, document));
}

function toDsError(error: ErrorObject, document: ConfigDocument): DsError {
  const path = error.instancePath.split('/').slice(1);
  if (error.keyword === 'required') path.push(error.params.missingProperty);
  if (error.keyword === 'discriminator') path.push(error.params.tag);
  const got = error.keyword === 'discriminator' ? error.params.tagValue : error.data;
  return new DsError({
    code: 'DS_CONFIG',
    op: document.locate(path),
    expected: expectation(error),
    got: error.keyword === 'required' ? 'nothing' : written(got),
    hint: hintFor(error, got),
  });
}

function expectation(error: ErrorObject): string {
  const { params } = error;
  switch (error.keyword) {
    case 'type':
      return [params.type].flat().map(article).join(' or ');
    case 'enum':
      return (params.allowedValues as unknown[]).map(written).join(', ');
    case 'discriminator':
      return types(error).map(written).join(', ');
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

function hintFor(error: ErrorObject, got: unknown): string {
  if (got === 'auto') return '"auto" is filled in by Hugging Face\'s Trainer; write a value here.';
  if (typeof got === 'string' && Number.isFinite(Number(got)) && error.keyword === 'type') {
    return `Write ${got} without quotes.`;
  }
  const names = error.keyword === 'enum' ? error.params.allowedValues : types(error);
  const isName = error.keyword === 'enum' || error.keyword === 'discriminator';
  const guess = isName && typeof got === 'string' ? closest(got, names.filter(isString)) : '';
  return guess ? `Did you mean "${guess}"?` : '';
}

/** The types among which a discriminator chooses: those that are there. */
function types(error: ErrorObject): unknown[] {
  const { oneOf = [] } = (error.parentSchema ?? {}) as Schema;
  const named = oneOf.map((option) => option.properties?.type);
  return named.filter((type) => !type?.dsUnsupportedValues).map((type) => type?.const);
}

function isString(value: unknown): value is string {
  return typeof value === 'string';
}

function article(type: string): string {
  if (type === 'null') return 'null';
  return /^[aeiou]/.test(type) ? `an ${type}` : `a ${type}`;
}

function written(value: unknown): string {
  if (isSection(value)) return `an object with ${Object.keys(value).length} keys`;
  return typeof value === 'number' ? String(value) : (JSON.stringify(value) ?? String(value));
}
