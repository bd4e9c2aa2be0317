// Errors of requests, in OpenAI's format and with an HTTP status.
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
  /** An error code for programs. */
  code?: string;
  /** Header fields of the answer. */
  headers?: Readonly<Record<string, string>>;
}

/** An error that the client receives. Thrown anywhere while a request is handled. */
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
   * Converts any thrown value to the error that the client gets. Errors of the request and
   * shortages keep their message. For any other error, calls `report` and returns a general
   * message.
   */
  static from(thrown: unknown, report: (thrown: unknown) => void): ApiError {
    if (thrown instanceof ApiError) return thrown;
    if (thrown instanceof DsError) {
      const { code, message } = thrown;
      if (CAUSED_BY_REQUEST.has(code)) return new ApiError(400, message, { code });
      if (SHORTAGES.has(code)) return overloadedError(message, { code });
    }
    report(thrown);
    return new ApiError(
      500,
      'The request failed inside the server; the log of the server has the reason.',
    );
  }
}

/** Error codes that become 400. DS_LIMIT: the request does not fit even an empty cache. */
const CAUSED_BY_REQUEST: ReadonlySet<string> = new Set([
  'DS_ARGUMENT',
  'DS_DATA',
  'DS_INDEX',
  'DS_LIMIT',
]);
const SHORTAGES: ReadonlySet<string> = new Set(['DS_OUT_OF_MEMORY']);

/** 400: `param` is not `expected`. */
export function invalidError(param: string, expected: string, got: string): ApiError {
  return new ApiError(400, `${param}: expected ${expected}, got ${got}.`, { param });
}

/** OpenAI's code of a prompt that is too long. */
export const TOO_LONG = 'context_length_exceeded';

const LONGER = 'Shorten the prompt, or raise --context (and --max-prompt-tokens, if you set it).';

/** 400: the prompt in the field `param` has more than `max` tokens. */
export function tooLongError(param: string, tokens: string, max: number): ApiError {
  // The inputs of an encoder end where its positions end.
  const advice = param === 'input' ? 'Shorten the text.' : LONGER;
  const message = `${param}: expected at most ${max} tokens, got ${tokens}. ${advice}`;
  return new ApiError(400, message, { param, code: TOO_LONG });
}

/** 400: the text in the field `param` has more than `max` characters (UTF-16 units). */
export function tooManyCharactersError(param: string, characters: number, max: number): ApiError {
  const message = `${param}: expected at most ${max} characters, got ${characters}. Raise --max-prompt-chars, or send less.`;
  return new ApiError(400, message, { param, code: TOO_LONG });
}

/** 400: the server does not support a feature of OpenAI's API. */
export function unsupportedError(param: string, reason: string): ApiError {
  return new ApiError(400, `${param} is not supported: ${reason}.`, {
    param,
    code: 'unsupported_parameter',
  });
}

/** 503: the same request may succeed later. */
export function overloadedError(message: string, { code }: ErrorDetails = {}): ApiError {
  return new ApiError(503, message, { code, headers: { 'retry-after': '1' } });
}

/** 503: the engine has failed and cannot recover without a restart. */
export function engineFailedError({ message }: Error): ApiError {
  return overloadedError(`The engine has failed and computes nothing more: ${message}`, {
    code: 'engine_failed',
  });
}

/** Maximum number of names in a message. */
const MAX_NAMES = 8;

/** 404: the server has no model or adapter of this name. */
export function noModelError(
  wanted: string,
  names: string | readonly string[],
  param = 'model',
): ApiError {
  const all = [names].flat();
  const listed = all.slice(0, MAX_NAMES).map((name) => JSON.stringify(name));
  const more = all.length > MAX_NAMES ? ' or another one of /v1/models' : '';
  const expected = listed.join(', ') || 'a loaded adapter, of which there is none';
  const got = JSON.stringify(wanted.slice(0, 60));
  const rename = ' Change the name in the client, or rename the model (--model-name, --model).';
  const advice = param === 'model' ? rename : '';
  const message = `${param}: expected ${expected}${more}, got ${got}.${advice}`;
  return new ApiError(404, message, { param, code: 'model_not_found' });
}
