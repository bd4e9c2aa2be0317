// Reads the JSON body of a request within a limit of bytes.

import type { IncomingMessage } from 'node:http';
import { TextDecoder } from 'node:util';
import type { JsonObject } from '../../types/json.js';
import { formatValue } from '../runtime/format-value.js';
import { isObject } from '../runtime/is-object.js';
import { errorMessage } from '../runtime/system-error.js';
import { ApiError } from './api-error.js';
import type { BodyReservation } from './body-budget.js';

/**
 * Returns the JSON object in the body. `reservation` counts its bytes. Throws 415 unless the type
 * is JSON, 413 beyond `max` bytes, and 503 if all bodies together are too large. Throws 400 unless
 * the body is a JSON object in UTF-8.
 */
export async function readJson(
  request: IncomingMessage,
  max: number,
  reservation: BodyReservation,
): Promise<JsonObject> {
  requireJson(request);
  requireSize(request, max);
  const bytes = await readBytes(request, max, reservation);
  let text: string;
  try {
    text = new TextDecoder('utf-8', { fatal: true }).decode(bytes);
  } catch {
    throw new ApiError(400, 'The body: expected UTF-8, got other bytes.', { code: 'invalid_utf8' });
  }
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (cause) {
    const message = `The body: expected JSON, got an error: ${errorMessage(cause).slice(0, 200)}.`;
    throw new ApiError(400, message, { code: 'invalid_json' });
  }
  if (isObject<JsonObject>(value)) return value;
  throw new ApiError(400, `The body: expected a JSON object, got ${formatValue(value)}.`);
}

/**
 * Throws 415 unless the body is JSON. This also refuses forms, which browsers send to any origin
 * without a preflight.
 */
function requireJson({ headers }: IncomingMessage): void {
  const type = headers['content-type'] ?? '';
  const coding = headers['content-encoding'] ?? 'identity';
  if (!/^application\/json\s*(;|$)/i.test(type)) {
    const got = type === '' ? 'none' : JSON.stringify(type.slice(0, 60));
    throw new ApiError(415, `Content-Type: expected application/json, got ${got}.`);
  }
  if (coding === 'identity') return;
  const got = JSON.stringify(coding.slice(0, 60));
  throw new ApiError(415, `Content-Encoding: expected no header, or "identity", got ${got}.`);
}

/** Throws 413 if Content-Length is larger than `max` bytes. */
export function requireSize({ headers }: IncomingMessage, max: number): void {
  if (Number(headers['content-length'] ?? 0) > max) throw tooLargeError(max);
}

function tooLargeError(max: number): ApiError {
  const message = `The body: expected at most ${max} bytes, got more. Send less, or raise --max-body.`;
  return new ApiError(413, message, { code: 'body_too_large' });
}

/** Collects the body. Rejects as soon as it is too large, and drops the remaining bytes. */
function readBytes(
  request: IncomingMessage,
  max: number,
  reservation: BodyReservation,
): Promise<Buffer> {
  return new Promise((resolve, reject) => {
    let chunks: Buffer[] = [];
    let size = 0;
    const fail = (error: unknown): void => {
      request.off('data', onData);
      chunks = [];
      request.resume();
      reject(error);
    };
    const onData = (chunk: Buffer): void => {
      size += chunk.length;
      chunks.push(chunk);
      try {
        if (size > max) throw tooLargeError(max);
        reservation.add(chunk.length);
      } catch (error) {
        fail(error);
      }
    };
    request.on('data', onData);
    request.once('end', () => resolve(Buffer.concat(chunks)));
    request.once('close', () => fail(new ApiError(400, 'The body ended before it was complete.')));
  });
}
