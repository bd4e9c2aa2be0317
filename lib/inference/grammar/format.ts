// Reads and checks the option `format` of a request.
import { formatValue } from '../../runtime/format-value.js';
import { argumentError, valueError } from '../../runtime/input-errors.js';
import { isObject } from '../../runtime/is-object.js';
import { errorMessage } from '../../runtime/system-error.js';
import type { CallGrammar } from '../../text/tool-calls/call-grammars.js';
import type { Schema } from './schema-merge.js';

/** A schema of zod, valibot, ArkType or another library, by https://standardschema.dev. */
export interface StandardSchema {
  /** The properties of the standard; `jsonSchema` is optional there. */
  readonly '~standard': { readonly version: number; readonly vendor: string };
}

/**
 * Describes the texts that the model may write: by a JSON schema, a Standard Schema with a JSON
 * schema, a regular expression, a list of texts or a grammar. It can also be any JSON object.
 */
export type Format =
  | StandardSchema
  | { readonly regex: string | RegExp }
  | { readonly choice: readonly string[] }
  | { readonly grammar: string }
  | { readonly jsonObject: true }
  | { readonly schema: object }
  | { readonly [keyword: string]: unknown };

/** A format in a form that can be sent to a thread. */
export type FormatSource =
  | { readonly kind: 'schema'; readonly schema: Schema }
  | { readonly kind: 'regex'; readonly regex: string }
  | { readonly kind: 'choice'; readonly choice: readonly string[] }
  | { readonly kind: 'grammar'; readonly grammar: string }
  | { readonly kind: 'jsonObject' }
  | { readonly kind: 'answer'; readonly answer: ReadAnswer };

/** Calls of functions within an answer (see lib/text/tool-calls). */
export interface AnswerCalls extends CallGrammar {
  /** At most one call. */
  readonly isSingle: boolean;
}

/**
 * Format of a whole answer: reasoning, then calls or text. The tags are texts that the model
 * writes.
 */
export interface AnswerFormat {
  /**
   * `begin` is null if the prompt has opened the reasoning already. Null: the answer has no
   * reasoning.
   */
  readonly reasoning: { readonly begin: string | null; readonly end: string } | null;
  /** Null: the answer has no calls. */
  readonly calls: AnswerCalls | null;
  /** Format of the text after the reasoning; null for any text. */
  readonly format: Format | null;
}

type ReadAnswer = Omit<AnswerFormat, 'format'> & { readonly format: FormatSource | null };

/** A checked format, and its JSON as the key of caches. */
export interface ReadFormat {
  readonly source: FormatSource;
  readonly key: string;
}

/** Maximum number of characters of a format as JSON. */
const MAX_TEXT = 2 ** 20;
const KINDS = ['regex', 'choice', 'grammar', 'jsonObject', 'schema'] as const;
/** The property that marks an AnswerFormat. No schema has this name. */
const ANSWER = '~answer';

/** Reads a format without compiling it. Throws DS_ARGUMENT, with `op`. */
export function readFormat(op: string, given: unknown): ReadFormat {
  const source = toSource(op, given);
  let key: string;
  try {
    key = JSON.stringify(source);
  } catch (error) {
    throw argumentError(op, 'a format of plain data', errorMessage(error));
  }
  if (key.length > MAX_TEXT) {
    throw argumentError(op, `a format of at most ${MAX_TEXT} characters`, `${key.length}`);
  }
  return { source: JSON.parse(key) as FormatSource, key };
}

function toSource(op: string, given: unknown): FormatSource {
  if (hasStandard(given)) return { kind: 'schema', schema: requestJsonSchema(op, given) };
  if (!isObject(given)) {
    throw valueError(op, 'a JSON schema, { regex }, { choice } or { grammar }', given);
  }
  if (Object.hasOwn(given, ANSWER)) {
    const { format, ...others } = given[ANSWER] as AnswerFormat;
    return { kind: 'answer', answer: { ...others, format: format && toSource(op, format) } };
  }
  const kind = KINDS.find((name) => Object.hasOwn(given, name));
  if (kind === undefined) return { kind: 'schema', schema: given as Schema };
  const [other] = Object.keys(given).filter((name) => name !== kind);
  if (other !== undefined) throw argumentError(op, `only "${kind}"`, `"${kind}" and "${other}"`);
  const value = given[kind];
  switch (kind) {
    case 'regex': {
      if (typeof value === 'string') return { kind, regex: value };
      const isRegex = value instanceof RegExp && /^[duvy]*$/.test(value.flags);
      if (isRegex) return { kind, regex: value.source };
      throw valueError(`${op} regex`, 'a pattern without flags', value);
    }
    case 'choice': {
      const isList = Array.isArray(value) && value.length > 0;
      if (isList && value.every((item) => typeof item === 'string' && item !== '')) {
        return { kind, choice: value as string[] };
      }
      throw valueError(`${op} choice`, 'a list of strings', value);
    }
    case 'grammar':
      if (typeof value === 'string') return { kind, grammar: value };
      throw valueError(`${op} grammar`, 'a grammar in EBNF', value);
    case 'schema':
      if (isObject(value)) return { kind, schema: value as Schema };
      throw valueError(`${op} schema`, 'a JSON schema', value);
    case 'jsonObject':
      if (value === true) return { kind };
      throw argumentError(`${op} jsonObject`, 'true', formatValue(value));
  }
}

/** Returns whether `given` implements Standard Schema; such schemas may be functions. */
function hasStandard(given: unknown): given is StandardSchema {
  const isHolder = isObject(given) || typeof given === 'function';
  return isHolder && '~standard' in (given as object);
}

/** Returns the JSON schema of a Standard Schema. Source: the Standard JSON Schema specification. */
function requestJsonSchema(op: string, given: StandardSchema): Schema {
  const standard = given['~standard'] as { vendor?: unknown; jsonSchema?: unknown };
  const { jsonSchema, vendor } = standard;
  const input = isObject(jsonSchema) ? jsonSchema.input : undefined;
  if (typeof input !== 'function') {
    const expected = 'a Standard Schema that offers its JSON schema';
    const hint = 'With zod, pass z.toJSONSchema(schema), or use zod 4.2 or later.';
    throw argumentError(op, expected, `a schema of ${formatValue(vendor)} without one`, hint);
  }
  try {
    return input.call(jsonSchema, { target: 'draft-2020-12' }) as Schema;
  } catch (error) {
    throw argumentError(op, 'a schema that JSON Schema can express', errorMessage(error));
  }
}
