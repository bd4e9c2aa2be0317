// A crowd of clients at one server: good ones, leaving ones, slow readers, senders of nonsense.
import { Agent, type IncomingMessage } from 'node:http';
import { random } from '../support/random.js';
import { begin, open, type Sent } from './client.js';

/** The result of one client. */
export interface Outcome {
  kind: 'good' | 'gone' | 'slow' | 'nonsense';
  /** HTTP status; 0 without an answer. */
  status: number;
  text: string;
}

/** The requests of a crowd. */
export interface CrowdOptions {
  url: string;
  clients: number;
  /** The body of client `i`'s good request. */
  bodyOf: (i: number) => object;
  key: string;
}

const PATH = '/v1/completions';

/** Each with the status that it must get. */
const NONSENSE: readonly (readonly [status: number, sent: (good: object) => Sent])[] = [
  [400, () => ({ body: '{"prompt": [1, 2' })],
  [413, () => ({ body: Buffer.alloc(10e6, 32) })],
  [401, (body) => ({ body, headers: { authorization: 'Bearer wrong' } })],
  [400, () => ({ body: Buffer.from('{"prompt": "\xff\xfe"}', 'latin1') })],
  [400, (body) => ({ body: { ...body, temperature: -5 } })],
  [400, (body) => ({ body: { ...body, logit_bias: { 5: 1e9 } } })],
  [400, (body) => ({ body: { ...body, top_k: 0.5 } })],
  [404, (body) => ({ body: { ...body, model: 'nobody' } })],
  [405, () => ({ method: 'DELETE' })],
  [415, () => ({ body: 'prompt=x', headers: { 'content-type': 'text/plain' } })],
];

/** The status that client `i` must get when it sends nonsense. */
export const statusOf = (i: number): number => NONSENSE[wayOf(i)]?.[0] as number;

const wayOf = (i: number): number => Math.floor(i / 10) % NONSENSE.length;
const pause = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms));

/** All clients at once, each with a connection of its own; resolves when all have ended. */
export function runCrowd(options: CrowdOptions): Promise<Outcome[]> {
  return Promise.all(Array.from({ length: options.clients }, (_, i) => runClient(i, options)));
}

/** One request of client `i`. */
export function runClient(i: number, options: Omit<CrowdOptions, 'clients'>): Promise<Outcome> {
  const role = i % 10;
  const good = options.bodyOf(i);
  const headers = { authorization: `Bearer ${options.key}` };
  const agent = new Agent({ keepAlive: false });
  const sent: Sent = { body: good, headers, agent };
  const url = options.url + PATH;
  if (role === 3) return goAway(url, { ...sent, body: { ...good, stream: i % 20 === 3 } });
  if (role === 6) return readSlowly(url, { ...sent, body: { ...good, stream: true } });
  if (role === 9) {
    const [, make] = NONSENSE[wayOf(i)] as (typeof NONSENSE)[number];
    const wrong = make(good);
    return ask('nonsense', url, { agent, ...wrong, headers: { ...headers, ...wrong.headers } });
  }
  return ask('good', url, { ...sent, body: { ...good, stream: i % 2 === 0 } });
}

async function ask(kind: Outcome['kind'], url: string, sent: Sent): Promise<Outcome> {
  const response = await begin(url, sent);
  return { kind, status: response.statusCode ?? 0, text: await textOf(response) };
}

/** Disconnects before or amid its answer. */
async function goAway(url: string, sent: Sent): Promise<Outcome> {
  const request = open(url, sent);
  request.on('error', () => {});
  request.once('response', (response) => response.on('error', () => {}).resume());
  await pause(10 + random() * 40);
  request.destroy();
  return { kind: 'gone', status: 0, text: '' };
}

/** Takes a piece at a time, with pauses. */
async function readSlowly(url: string, sent: Sent): Promise<Outcome> {
  const response = await begin(url, sent);
  const chunks: Buffer[] = [];
  for await (const chunk of response) {
    chunks.push(chunk as Buffer);
    await pause(5);
  }
  const status = response.statusCode ?? 0;
  return { kind: 'slow', status, text: Buffer.concat(chunks).toString() };
}

async function textOf(response: IncomingMessage): Promise<string> {
  const chunks: Buffer[] = [];
  for await (const chunk of response) chunks.push(chunk as Buffer);
  return Buffer.concat(chunks).toString();
}
