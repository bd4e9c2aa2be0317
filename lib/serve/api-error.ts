// Errors of requests: OpenAI's error object, and its HTTP status.
import { DsError } from '../errors.js';

/** The object under "error". */
interface ErrorBody {
  message: string;
  type: string;
  param: string | null;
  code: string | null;
}

/** OpenAI's error types, by status. */
const TYPES: Readonly<Record<number, string>> = {
  401: 'authentication_error',
  403: 'permission_error',
  404: 'not_found_error',
  429: 'rate_limit_error',
  500: 'server_error',
  503: 'service_unavailable_error',
};

/** Optional parts of an error. */
interface ErrorDetails {
  /** The parameter that is wrong, such as "messages[0].content". */
  param?: string;
  /** A stable word for programs. */
  code?: string;
  /** Header fields of the answer. */
  headers?: Readonly<Record<string, string>>;
}

/** Thrown wherever a request turns out to be one that gets no answer. */
export class ApiError extends Error {
  readonly param: string | null;
  readonly code: string | null;
  readonly headers: Readonly<Record<string, string>>;

  constructor(
    /** HTTP status. */
    readonly status: number,
    message: string,
    { param, code, headers = {} }: ErrorDetails = {},
  ) {
    super(message);
    this.name = 'ApiError';
    this.param = param ?? null;
    this.code = code ?? null;
    this.headers = headers;
  }

  /** Returns the JSON body of the answer. */
  get body(): { error: ErrorBody } {
    const type = TYPES[this.status] ?? 'invalid_request_error';
    const { message, param, code } = this;
    return { error: { message, type, param, code } };
  }

  /**
   * The answer to a client for any error. Errors of the request and shortages keep their message.
   * Other errors go to `report`, and the client gets a general message.
   */
  static from(thrown: unknown, report: (thrown: unknown) => void): ApiError {
    if (thrown instanceof ApiError) return thrown;
    if (thrown instanceof DsError) {
      const { code, message } = thrown;
      if (CAUSED_BY_REQUEST.has(code)) return new ApiError(400, message, { code });
      if (SHORTAGES.has(code)) return overloaded(message, { code });
    }
    report(thrown);
    return new ApiError(
      500,
      'The request failed inside the server; the log of the server has the reason.',
    );
  }
}

/** DS_LIMIT is a request that no empty cache has room for. */
const CAUSED_BY_REQUEST: ReadonlySet<string> = new Set([
  'DS_ARGUMENT',
  'DS_DATA',
  'DS_INDEX',
  'DS_LIMIT',
]);
const SHORTAGES: ReadonlySet<string> = new Set(['DS_OUT_OF_MEMORY']);

/** 400: `param` is not `expected`. */
export function invalid(param: string, expected: string, got: string): ApiError {
  return new ApiError(400, `${param}: expected ${expected}, got ${got}.`, { param });
}

/** OpenAI's code for it. */
export const TOO_LONG = 'context_length_exceeded';

/** 400: the prompt in the field `param` has more than `max` tokens. */
export function tooLong(param: string, tokens: string, max: number): ApiError {
  const message = `${param}: expected at most ${max} tokens, got ${tokens}. Shorten the prompt.`;
  return new ApiError(400, message, { param, code: TOO_LONG });
}

/** 400: the text in the field `param` has more than `max` characters (UTF-16 units). */
export function tooManyCharacters(param: string, characters: number, max: number): ApiError {
  const message = `${param}: expected at most ${max} characters, got ${characters}. Raise --max-prompt-chars, or send less.`;
  return new ApiError(400, message, { param, code: TOO_LONG });
}

/** 400: something that OpenAI's interface has and this server has not. */
export function unsupported(param: string, reason: string): ApiError {
  return new ApiError(400, `${param} is not supported: ${reason}.`, {
    param,
    code: 'unsupported_parameter',
  });
}

/** 503: the same request may succeed later. */
export function overloaded(message: string, { code }: ErrorDetails = {}): ApiError {
  return new ApiError(503, message, { code, headers: { 'retry-after': '1' } });
}

/** 503: the engine has failed for good. The server answers no request until a restart. */
export function engineFailed({ message }: Error): ApiError {
  return overloaded(`The engine has failed and computes nothing more: ${message}`, {
    code: 'engine_failed',
  });
}

/** Names in a message. */
const SHOWN_NAMES = 8;

/** 404: the server has no model, or no adapter, of this name. */
export function noModel(
  wanted: string,
  names: string | readonly string[],
  param = 'model',
): ApiError {
  const all = [names].flat();
  const shown = all.slice(0, SHOWN_NAMES).map((name) => JSON.stringify(name));
  const more = all.length > SHOWN_NAMES ? ' or another one of /v1/models' : '';
  const expected = shown.join(', ') || 'a loaded adapter, of which there is none';
  const message = `${param}: expected ${expected}${more}, got ${JSON.stringify(wanted.slice(0, 60))}.`;
  return new ApiError(404, message, { param, code: 'model_not_found' });
}
