// Errors in the format of Anthropic's API.
import type { ServerResponse } from 'node:http';
import { type ApiError, TOO_LONG } from '../api-error.js';
import { sendJson } from '../send.js';

/** Anthropic's error types, by status. */
const TYPES: Readonly<Record<number, string>> = {
  401: 'authentication_error',
  403: 'permission_error',
  404: 'not_found_error',
  413: 'request_too_large',
  429: 'rate_limit_error',
  500: 'api_error',
  503: 'overloaded_error',
};

/** Code of a request with `thread`: Anthropic's package then sends the whole conversation. */
export const NO_THREADS = 'thread_unsupported_request';

/** Returns whether errors of the path have this format. */
export const isMessagesPath = (path: string): boolean => /^\/v1\/messages(\/|$)/.test(path);

/** Returns the JSON body of an answer. */
export function messagesErrorBody({ status, message, code }: ApiError) {
  // Agents shorten the conversation if the message has these words.
  const text = code === TOO_LONG ? `prompt is too long: ${message}` : message;
  const details = { error_code: NO_THREADS, unsupported: ['thread'] };
  const error = {
    type: TYPES[status] ?? 'invalid_request_error',
    message: text,
    ...(code === NO_THREADS && { details }),
  };
  return { type: 'error', error };
}

/** Sends an error and ends the response. */
export function sendMessagesError(response: ServerResponse, error: ApiError): void {
  sendJson(response, error.status, messagesErrorBody(error), error.headers);
}
