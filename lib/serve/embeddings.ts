// Handles POST /v1/embeddings and /v1/rerank.
import { randomUUID } from 'node:crypto';
import type { JsonObject, JsonValue } from '../../types/json.js';
import { formatValue } from '../runtime/format-value.js';
import { isObject } from '../runtime/is-object.js';
import { required } from '../runtime/required.js';
import {
  invalidError,
  noModelError,
  tooManyCharactersError,
  unsupportedError,
} from './api-error.js';
import type { QueueClient } from './fair-queue.js';
import { isInteger, RequestFields } from './request-fields.js';
import type { ServedEncoder } from './served-engine.js';
import type { ServedModel } from './served-model.js';

/** Maximum number of inputs or documents in a request, as in OpenAI's API. */
const MAX_INPUTS = 2048;

/** Returns the embeddings of `input`: a text, tokens, or a list of either. Throws 400, 404. */
export async function embeddings(
  body: JsonObject,
  served: ServedModel,
  queueClient: QueueClient,
): Promise<JsonObject> {
  const fields = new RequestFields(body);
  const encoder = requireEncoder(fields, served, 'embedding');
  const inputs = readInputs(fields.any('input'), served);
  const format = fields.text('encoding_format') ?? 'float';
  if (format !== 'float' && format !== 'base64') {
    throw invalidError('encoding_format', '"float" or "base64"', formatValue(format));
  }
  const width = fields.integer('dimensions', 1, encoder.width);
  fields.any('user');
  fields.requireKnown();
  const rows = await Promise.all(inputs.map((input) => tokenizeInputs(input, served, queueClient)));
  const vectors = await encoder.embed(rows);
  const tokens = rows.reduce((sum, row) => sum + row.length, 0);
  return {
    object: 'list',
    data: vectors.map((vector, index) => {
      const result = width === undefined ? vector : normalize(vector.slice(0, width));
      const embedding = format === 'float' ? Array.from(result) : toBase64(result);
      return { object: 'embedding', index, embedding };
    }),
    model: served.name,
    usage: { prompt_tokens: tokens, total_tokens: tokens },
  };
}

/** Returns the scores of documents for a query, best first. Throws 400, 404. */
export async function rerank(body: JsonObject, served: ServedModel): Promise<JsonObject> {
  const fields = new RequestFields(body);
  const encoder = requireEncoder(fields, served, 'ranking');
  const query = fields.text('query');
  if (!query) throw invalidError('query', 'a string', formatValue(query));
  const documents = readDocuments(fields.any('documents'));
  const top = fields.integer('top_n', 0) ?? 0;
  const withTexts = fields.flag('return_documents') ?? true;
  fields.any('user');
  fields.requireKnown();
  const max = served.limits.promptCharacters ?? 16 * served.maxTokens + 65_536;
  const longest = Math.max(...documents.map((text) => text.length)) + query.length;
  if (longest > max) throw tooManyCharactersError('documents', longest, max);
  const { scores, tokens } = await encoder.rank(query, documents);
  const results = scores
    .map((relevance_score, index) => ({
      index,
      ...(withTexts && { document: { text: required(documents[index]) } }),
      relevance_score,
    }))
    .sort((a, b) => b.relevance_score - a.relevance_score);
  return {
    id: `rerank-${randomUUID().replaceAll('-', '')}`,
    model: served.name,
    usage: { prompt_tokens: tokens, total_tokens: tokens },
    results: top === 0 ? results : results.slice(0, top),
  };
}

function requireEncoder(
  fields: RequestFields,
  { name, engine: { encoder } }: ServedModel,
  task: ServedEncoder['task'],
): ServedEncoder {
  const model = fields.text('model');
  if (model !== undefined && model !== name) throw noModelError(model, name);
  if (encoder?.task === task) return encoder;
  const expected = task === 'embedding' ? 'an embedding model' : 'a ranking model with one label';
  throw unsupportedError(
    'model',
    `this route needs ${expected}; serve one, such as an encoder's folder`,
  );
}

type Input = string | readonly number[];

function readInputs(value: JsonValue | undefined, { vocabSize, reader }: ServedModel): Input[] {
  const isList = Array.isArray(value) && typeof value[0] !== 'number';
  const inputs = isList ? value : [value];
  if (inputs.length === 0 || inputs.length > MAX_INPUTS) {
    throw invalidError('input', `1 to ${MAX_INPUTS} strings`, `${inputs.length}`);
  }
  return inputs.map((input, i) => {
    const location = isList ? `input[${i}]` : 'input';
    if (typeof input === 'string' && input !== '' && reader) return input;
    const isTokens = Array.isArray(input) && input.length > 0;
    if (isTokens && input.every((id) => isInteger(id, 0, vocabSize - 1))) return input;
    const tokens = `a list of tokens below ${vocabSize}`;
    throw invalidError(location, reader ? `a string, or ${tokens}` : tokens, formatValue(input));
  });
}

async function tokenizeInputs(
  input: Input,
  { reader, maxPromptTokens }: ServedModel,
  queueClient: QueueClient,
): Promise<readonly number[]> {
  if (typeof input === 'string') return required(reader).encode(input, queueClient, 'input');
  if (input.length <= maxPromptTokens) return input;
  throw invalidError('input', `at most ${maxPromptTokens} tokens`, `${input.length}`);
}

function readDocuments(documents: JsonValue | undefined): string[] {
  if (!Array.isArray(documents) || documents.length === 0 || documents.length > MAX_INPUTS) {
    const got = Array.isArray(documents) ? `${documents.length}` : formatValue(documents);
    throw invalidError('documents', `a list of 1 to ${MAX_INPUTS} strings`, got);
  }
  return documents.map((item, i) => {
    const text = isObject<JsonObject>(item) ? item.text : item;
    if (typeof text === 'string') return text;
    throw invalidError(`documents[${i}]`, 'a string, or { "text": ".." }', formatValue(item));
  });
}

/** Scales a shortened vector to length 1: Matryoshka models expect it. */
function normalize(vector: Float32Array): Float32Array {
  const length = Math.hypot(...vector) || 1;
  return vector.map((value) => value / length);
}

/** Encodes the vector as little-endian f32 in base64. */
function toBase64(vector: Float32Array): string {
  const bytes = Buffer.alloc(4 * vector.length);
  for (const [i, value] of vector.entries()) bytes.writeFloatLE(value, 4 * i);
  return bytes.toString('base64');
}
