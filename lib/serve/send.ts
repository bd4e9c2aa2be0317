// Sends complete responses: JSON objects, errors and texts.
import type { ServerResponse } from 'node:http';

import type { ApiError } from './api-error.js';

/** Sends an object and ends the response. */
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

/** Sends an error and ends the response. */
export function sendError(response: ServerResponse, error: ApiError): void {
  sendJson(response, error.status, error.body, error.headers);
}

/** Sends a text, or the bytes of one, and ends the response. */
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
