// response_format of OpenAI, and structured_outputs of vLLM: the texts that an answer may have.
import type { JsonObject, JsonValue } from '../../types/json.js';
import { DsError } from '../errors.js';
import { compileFormat } from '../inference/grammar/compile.js';
import { type Format, readFormat } from '../inference/grammar/format.js';
import { formatValue } from '../runtime/format-value.js';
import { isObject } from '../runtime/is-object.js';
import { ApiError, invalid } from './api-error.js';
import type { RequestFields } from './request-fields.js';
import type { ServedModel } from './served-model.js';

/** A format, and the field that gives it. */
export interface FormatField {
  readonly format: Format;
  readonly field: string;
}

const RESPONSE = 'response_format';
const STRUCTURED = 'structured_outputs';
const KINDS = ['json', 'regex', 'choice', 'grammar', 'json_object'] as const;

/** Returns the format of a request; null for any text. Throws 400 with the field. */
export function formatOf(fields: RequestFields, served: ServedModel): FormatField | null {
  const found = [responseFormat(fields), structuredOutputs(fields)].filter((item) => item !== null);
  const [one = null, other] = found;
  if (other) throw invalid(STRUCTURED, `${RESPONSE} or ${STRUCTURED}`, 'both');
  if (one && !served.tokenizer) {
    throw invalid(one.field, 'no format for a model without a tokenizer', 'a format');
  }
  return one;
}

function responseFormat(fields: RequestFields): FormatField | null {
  const given = fields.inside(RESPONSE);
  if (given === undefined) return null;
  const type = given.text('type');
  const schema = given.inside('json_schema');
  given.requireKnown();
  if (type === 'text') return null;
  if (type === 'json_object') return { format: { jsonObject: true }, field: RESPONSE };
  if (type !== 'json_schema') {
    const types = '"text", "json_object" or "json_schema"';
    throw invalid(`${RESPONSE}.type`, types, formatValue(type));
  }
  const value = schema?.any('schema');
  for (const name of ['name', 'description', 'strict']) schema?.any(name);
  schema?.requireKnown();
  return { format: schemaOf(`${RESPONSE}.json_schema.schema`, value), field: RESPONSE };
}

function structuredOutputs(fields: RequestFields): FormatField | null {
  const given = fields.inside(STRUCTURED);
  if (given === undefined) return null;
  const values = KINDS.flatMap((kind) => {
    const value = given.any(kind);
    return value === undefined || value === false ? [] : [[kind, value] as const];
  });
  given.requireKnown();
  const [only] = values;
  if (!only || values.length > 1) {
    const got = values.map(([kind]) => kind).join(' and ') || 'none';
    throw invalid(STRUCTURED, `one of ${KINDS.join(', ')}`, got);
  }
  const [kind, value] = only;
  const field = `${STRUCTURED}.${kind}`;
  if (kind === 'json') return { format: schemaOf(field, parseField(field, value)), field };
  if (kind === 'json_object') return { format: { jsonObject: value } as Format, field };
  return { format: { [kind]: value }, field };
}

/** vLLM's clients send schemas as objects, or as their text. */
function parseField(field: string, value: JsonValue): JsonValue {
  if (typeof value !== 'string') return value;
  try {
    return JSON.parse(value) as JsonValue;
  } catch {
    throw invalid(field, 'a JSON schema', 'a text that is not JSON');
  }
}

function schemaOf(field: string, value: JsonValue | undefined): Format {
  if (isObject<JsonObject>(value)) return { schema: value };
  throw invalid(field, 'a JSON schema', formatValue(value));
}

/** Compiles the format of a request, so that a bad one is refused before the answer begins. */
export async function requireCompiled({ format, field }: FormatField): Promise<void> {
  try {
    await compileFormat(readFormat(field, format));
  } catch (error) {
    if (!(error instanceof DsError)) throw error;
    const { code, message } = error;
    throw new ApiError(400, `${field}: ${message}`, { param: field, code });
  }
}
