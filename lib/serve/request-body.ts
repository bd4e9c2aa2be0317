// A request's body: bytes within a bound, UTF-8, JSON, an object.
import type { IncomingMessage } from 'node:http';
import { TextDecoder } from 'node:util';
import type { JsonObject } from '../../types/json.js';
import { formatValue } from '../runtime/format-value.js';
import { isObject } from '../runtime/is-object.js';
import { ApiError } from './api-error.js';

/** A body that is too large is read on, and thrown away, so that its sender hears why. */
const DISCARDED_BODIES = 16;

/**
 * The object in the body. Throws 415 for another type than JSON, 413 beyond `most` bytes, 400 for
 * what is no UTF-8, no JSON or no object.
 */
export async function readJson(request: IncomingMessage, most: number): Promise<JsonObject> {
  requireJson(request);
  const bytes = await readBytes(request, most);
  let text: string;
  try {
    text = new TextDecoder('utf-8', { fatal: true }).decode(bytes);
  } catch {
    throw new ApiError(400, 'The body is no UTF-8.', { code: 'invalid_utf8' });
  }
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (cause) {
    const message = `The body is no JSON: ${(cause as Error).message.slice(0, 200)}.`;
    throw new ApiError(400, message, { code: 'invalid_json' });
  }
  if (isObject<JsonObject>(value)) return value;
  throw new ApiError(400, `The body: expected a JSON object, got ${formatValue(value)}.`);
}

/** Also keeps forms of web pages out, which browsers send anywhere without asking. */
function requireJson({ headers }: IncomingMessage): void {
  const type = headers['content-type'] ?? '';
  const coding = headers['content-encoding'] ?? 'identity';
  if (!/^application\/json\s*(;|$)/i.test(type)) {
    const got = type === '' ? 'none' : JSON.stringify(type.slice(0, 60));
    throw new ApiError(415, `Content-Type: expected application/json, got ${got}.`);
  }
  if (coding === 'identity') return;
  const got = JSON.stringify(coding.slice(0, 60));
  throw new ApiError(415, `Content-Encoding: expected none, got ${got}.`);
}

/** Throws 413 for a body that its header says is larger than `most` bytes. */
export function requireSize({ headers }: IncomingMessage, most: number): void {
  if (Number(headers['content-length'] ?? 0) > most) throw tooLarge(most);
}

function tooLarge(most: number): ApiError {
  const message = `The body is larger than ${most} bytes, the most that this server takes.`;
  return new ApiError(413, message, { code: 'body_too_large' });
}

async function readBytes(request: IncomingMessage, most: number): Promise<Buffer> {
  const chunks: Buffer[] = [];
  let size = 0;
  try {
    for await (const chunk of request as AsyncIterable<Buffer>) {
      size += chunk.length;
      if (size <= most) chunks.push(chunk);
      else chunks.length = 0;
      if (size > DISCARDED_BODIES * most) break;
    }
  } catch {
    throw new ApiError(400, 'The body ended before it was complete.');
  }
  if (size > most) throw tooLarge(most);
  return Buffer.concat(chunks);
}
