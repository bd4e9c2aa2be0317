// Clients send requests in a loop: plain ones, schemas and tools. A tenth each vanish, read slowly
// or send nonsense. Every answer is checked.
import { setTimeout as delay } from 'node:timers/promises';
import Ajv from 'ajv';
import { random } from '../support/random.js';
import { ask, eventsOf } from './client.js';
import { type Outcome, runClient, statusOf } from './crowd.js';

export interface LoadOptions {
  url: string;
  key: string;
  clients: number;
  /** Called before each request; false ends the run. */
  goesOn: () => boolean;
  /** The server may refuse requests, but not cut answers. */
  isStopping?: () => boolean;
}

export interface LoadCounts {
  requests: Record<Outcome['kind'] | 'schema' | 'tools', number>;
  /** The longest time of a request that is answered, in milliseconds. */
  slowest: number;
  /** Requests that a stopping server has refused. */
  refused: number;
  faultCount: number;
  /** The first faults. */
  faults: string[];
}

const MAX_FAULTS = 50;
const FORMED_TOKENS = 200;
const day = { enum: ['Monday', 'Sunday'] };
const trip = {
  type: 'object',
  properties: {
    city: { enum: ['Rome', 'Oslo'] },
    days: { type: 'array', items: day, maxItems: 2 },
  },
  required: ['city', 'days'],
  additionalProperties: false,
};
const isTrip = new Ajv().compile(trip);
const messages = [{ role: 'user', content: 'Hello' }];
const SCHEMA = {
  messages,
  max_tokens: FORMED_TOKENS,
  temperature: 1.5,
  response_format: {
    type: 'json_schema',
    json_schema: { name: 'trip', strict: true, schema: trip },
  },
};
const TOOLS = {
  messages,
  max_tokens: FORMED_TOKENS,
  temperature: 1.5,
  tool_choice: 'required',
  tools: [{ type: 'function', function: { name: 'trip', parameters: trip } }],
};

/** A server that stops answers 503, or takes no connection. */
const REFUSED = /"stopping"|ECONNREFUSED|ECONNRESET|EPIPE|socket hang up/;

/** The fault of a plain answer of `tokens` tokens. */
function faultOfPlain({ kind, status, text }: Outcome, i: number, tokens: number): string | null {
  if (kind === 'gone') return null;
  if (kind === 'nonsense') {
    const expected = statusOf(i);
    return status === expected ? null : `expected status ${expected}, got ${status}: ${text}`;
  }
  if (status !== 200) return `status ${status}: ${text}`;
  if (!text.startsWith('{')) {
    const { events, isDone } = eventsOf(text);
    const isWhole = isDone && events.at(-1)?.choices[0]?.finish_reason === 'length';
    return isWhole ? null : `a stream without its end: ${text.slice(-300)}`;
  }
  const result = JSON.parse(text).usage.completion_tokens;
  return result === tokens ? null : `expected ${tokens} tokens, got ${result}`;
}

/** The fault of an answer to SCHEMA or TOOLS. */
async function faultOfFormed(url: string, key: string, body: object): Promise<string | null> {
  const headers = { authorization: `Bearer ${key}` };
  const { status, text, json } = await ask(`${url}/v1/chat/completions`, { body, headers });
  if (status !== 200) return `status ${status}: ${text}`;
  const [{ message, finish_reason }] = json.choices;
  // The answer ended at its tokens: only its beginning is there.
  if (finish_reason === 'length') return null;
  const calls: { function: { arguments: string } }[] | undefined = message.tool_calls;
  const answer = body === TOOLS ? calls?.[0]?.function.arguments : message.content;
  return answer !== undefined && isTrip(JSON.parse(answer)) ? null : `not of the schema: ${text}`;
}

/** Runs the clients until `goesOn` is false and each has its last answer. */
export async function runLoad(options: LoadOptions): Promise<LoadCounts> {
  const { url, key, clients, goesOn, isStopping = () => false } = options;
  const requests = { good: 0, gone: 0, slow: 0, nonsense: 0, schema: 0, tools: 0 };
  const counts: LoadCounts = { requests, slowest: 0, refused: 0, faultCount: 0, faults: [] };
  const plain = async (i: number): Promise<string | null> => {
    const tokens = 4 + Math.floor(random() * 20);
    const prompt = Array.from({ length: 1 + (i % 30) }, (_, at) => 1 + ((i + at) % 900));
    const bodyOf = () => ({ prompt, max_tokens: tokens, temperature: 1, ignore_eos: true });
    const outcome = await runClient(i, { url, key, bodyOf });
    requests[outcome.kind]++;
    return faultOfPlain(outcome, i, tokens);
  };
  const askFormatted = async (kind: 'schema' | 'tools'): Promise<string | null> => {
    requests[kind]++;
    return faultOfFormed(url, key, kind === 'schema' ? SCHEMA : TOOLS);
  };
  const once = (i: number): Promise<string | null> => {
    if (i % 10 !== 1) return plain(i);
    return askFormatted(i % 20 === 1 ? 'schema' : 'tools');
  };
  const client = async (i: number): Promise<void> => {
    while (goesOn()) {
      const began = performance.now();
      const fault = await once(i).catch((error: Error) => `${error.message} ${error.cause ?? ''}`);
      if (fault && isStopping() && REFUSED.test(fault)) counts.refused++;
      else if (fault) {
        counts.faultCount++;
        if (counts.faults.length < MAX_FAULTS) counts.faults.push(`client ${i}: ${fault}`);
      }
      counts.slowest = Math.max(counts.slowest, performance.now() - began);
      // A client that vanishes waits for no answer.
      await delay(random() * (i % 10 === 3 ? 1000 : 200));
    }
  };
  await Promise.all(Array.from({ length: clients }, (_, i) => client(i)));
  return counts;
}
