// Reads the constraint of an answer: `response_format` of OpenAI, `structured_outputs` of vLLM.
import type { JsonObject, JsonValue } from '../../types/json.js';
import { DsError } from '../errors.js';
import { compileFormat } from '../inference/grammar/compile.js';
import { type Format, readFormat } from '../inference/grammar/format.js';
import { formatValue } from '../runtime/format-value.js';
import { isObject } from '../runtime/is-object.js';
import { ApiError, invalidError } from './api-error.js';
import type { RequestFields } from './request-fields.js';
import type { ServedModel } from './served-model.js';

/** A format, and the name of its field for messages. */
export interface FormatField {
  readonly format: Format;
  readonly field: string;
}

const RESPONSE = 'response_format';
const STRUCTURED = 'structured_outputs';
const KINDS = ['json', 'regex', 'choice', 'grammar', 'json_object'] as const;

/** Returns the format of a request; null for any text. Throws 400 with the field. */
export function readFormatField(fields: RequestFields, served: ServedModel): FormatField | null {
  const formats = [readResponseFormat(fields), readStructuredOutputs(fields)].filter(
    (item) => item !== null,
  );
  const [format = null, other] = formats;
  if (other) throw invalidError(STRUCTURED, `${RESPONSE} or ${STRUCTURED}`, 'both');
  if (format && !served.tokenizer) {
    throw invalidError(format.field, 'no format for a model without a tokenizer', 'a format');
  }
  return format;
}

function readResponseFormat(fields: RequestFields): FormatField | null {
  const format = fields.inside(RESPONSE);
  if (format === undefined) return null;
  const type = format.text('type');
  const schema = format.inside('json_schema');
  format.requireKnown();
  if (type === 'text') return null;
  if (type === 'json_object') return { format: { jsonObject: true }, field: RESPONSE };
  if (type !== 'json_schema') {
    const types = '"text", "json_object" or "json_schema"';
    throw invalidError(`${RESPONSE}.type`, types, formatValue(type));
  }
  const value = schema?.any('schema');
  for (const name of ['name', 'description', 'strict']) schema?.any(name);
  schema?.requireKnown();
  return { format: parseSchema(`${RESPONSE}.json_schema.schema`, value), field: RESPONSE };
}

function readStructuredOutputs(fields: RequestFields): FormatField | null {
  const outputs = fields.inside(STRUCTURED);
  if (outputs === undefined) return null;
  const values = KINDS.flatMap((kind) => {
    const value = outputs.any(kind);
    return value === undefined || value === false ? [] : [[kind, value] as const];
  });
  outputs.requireKnown();
  const [only] = values;
  if (!only || values.length > 1) {
    const got = values.map(([kind]) => kind).join(' and ') || 'none';
    throw invalidError(STRUCTURED, `one of ${KINDS.join(', ')}`, got);
  }
  const [kind, value] = only;
  const field = `${STRUCTURED}.${kind}`;
  if (kind === 'json') return { format: parseSchema(field, parseField(field, value)), field };
  if (kind === 'json_object') return { format: { jsonObject: value } as Format, field };
  return { format: { [kind]: value }, field };
}

/** Parses a schema that the client sent as text; vLLM's clients send either. */
function parseField(field: string, value: JsonValue): JsonValue {
  if (typeof value !== 'string') return value;
  try {
    return JSON.parse(value) as JsonValue;
  } catch {
    throw invalidError(field, 'a JSON schema', 'a text that is not JSON');
  }
}

function parseSchema(field: string, value: JsonValue | undefined): Format {
  if (isObject<JsonObject>(value)) return { schema: value };
  throw invalidError(field, 'a JSON schema', formatValue(value));
}

/** Compiles the format, so that an invalid one is refused before the answer starts. */
export async function requireCompiled({ format, field }: FormatField): Promise<void> {
  try {
    await compileFormat(readFormat(field, format));
  } catch (error) {
    if (!(error instanceof DsError)) throw error;
    const { code, message } = error;
    throw new ApiError(400, `${field}: ${message}`, { param: field, code });
  }
}
