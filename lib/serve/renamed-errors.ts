// Renames the fields in errors of a request that was translated to a chat.
import { ApiError } from './api-error.js';

/** Names of fields in a chat, and of the same fields in the request. The first match counts. */
export type FieldNames = readonly (readonly [chat: RegExp, own: string])[];

/** Calls `read`. Its errors name the fields of the request. */
export function withFieldNames<T>(names: FieldNames, read: () => T): T {
  try {
    return read();
  } catch (error) {
    throw renameField(names, error);
  }
}

/** Returns the error with the name that the field has in the request. */
export function renameField(names: FieldNames, error: unknown): unknown {
  if (!(error instanceof ApiError) || error.param === null) return error;
  const { status, message, param, code, headers } = error;
  const [chat, own] = names.find(([name]) => name.test(param)) ?? [];
  if (!chat || own === undefined) return error;
  const details = { ...(code && { code }), headers, param: param.replace(chat, own) };
  return new ApiError(status, message.replace(param, details.param), details);
}

/**
 * Returns names for errors of the whole prompt. One message of the request may be several messages
 * of the chat, so these errors name the list. `system`: the field of the first message; null if the
 * request has none.
 */
export function promptNames(system: string | null, list: string): FieldNames {
  const first = system === null ? [] : [[/^messages\[0\].*/, system] as const];
  return [...first, [/^messages\[\d+\].*/, list]];
}
