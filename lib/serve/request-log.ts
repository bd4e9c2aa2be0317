// Prints a line of JSON for each request, without prompts and answers.
import { createHash } from 'node:crypto';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { keyOf } from './access.js';
import type { Usage } from './answer.js';
import type { ApiError } from './api-error.js';

/** Paths of probes, which would fill the log. */
const PROBES: ReadonlySet<string> = new Set(['/health', '/metrics']);
/** Characters of a path in a line. */
const PATH_LENGTH = 80;
/** Hexadecimal digits of a key's digest that name a client. */
const CLIENT_DIGITS = 8;

/** Fields of a line that the answer adds. */
interface Notes {
  model?: string;
  prompt_tokens?: number;
  cached_tokens?: number;
  completion_tokens?: number;
  error?: string;
}

/** Collects the fields of each request, and prints them when its response ends. */
export class RequestLog {
  private readonly notes = new WeakMap<ServerResponse, Notes>();

  /** `print` receives a line without its end. */
  constructor(private readonly print: (line: string) => void) {}

  /** Adds the token counts of an answer. */
  addUsage(response: ServerResponse, model: string, usage: Usage): void {
    this.add(response, {
      model,
      prompt_tokens: usage.promptTokens,
      cached_tokens: usage.cachedTokens,
      completion_tokens: usage.completionTokens,
    });
  }

  /** Adds the error of a response, also of one that has begun. */
  addError(response: ServerResponse, { code, message }: ApiError): void {
    this.add(response, { error: code ?? message });
  }

  /** Prints the line of a response that took `seconds`. */
  end(response: ServerResponse, path: string, status: number, seconds: number): void {
    if (PROBES.has(path) && status < 400) return;
    const { method, headers } = response.req;
    const line = {
      time: new Date().toISOString(),
      status,
      seconds: Number(seconds.toFixed(3)),
      method,
      path: path.slice(0, PATH_LENGTH),
      client: clientOf(headers),
      ...this.notes.get(response),
    };
    this.print(JSON.stringify(line));
  }

  private add(response: ServerResponse, notes: Notes): void {
    this.notes.set(response, { ...this.notes.get(response), ...notes });
  }
}

/** Returns the start of the SHA-256 of a client's key; undefined without a key. */
function clientOf(headers: IncomingMessage['headers']): string | undefined {
  const key = keyOf(headers);
  if (key === undefined) return undefined;
  return createHash('sha256').update(key).digest('hex').slice(0, CLIENT_DIGITS);
}
