// Whole answers: a status, a JSON object or a text.
import type { ServerResponse } from 'node:http';

import type { ApiError } from './api-error.js';

/** Ends `response` with an object. */
export function sendJson(
  response: ServerResponse,
  status: number,
  body: object,
  headers: Readonly<Record<string, string>> = {},
): void {
  send(response, status, JSON.stringify(body), {
    'content-type': 'application/json; charset=utf-8',
    ...headers,
  });
}

/** Ends `response` with an error. */
export function sendError(response: ServerResponse, error: ApiError): void {
  sendJson(response, error.status, error.body, error.headers);
}

/** Ends `response` with a text, or with bytes of one. */
export function send(
  response: ServerResponse,
  status: number,
  text: string | Buffer,
  headers: Readonly<Record<string, string>>,
): void {
  if (response.headersSent || response.destroyed) return;
  response.writeHead(status, { ...headers, 'content-length': Buffer.byteLength(text) });
  response.end(text);
}
