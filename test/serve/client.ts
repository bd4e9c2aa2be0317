// A small client for tests of the server: requests as they are, answers as they come.
import assert from 'node:assert/strict';
import { Agent, type IncomingMessage, request } from 'node:http';
import { type InferenceServer, type ServeOptions, serve } from '../../lib/serve/index.js';
import { FakeEngine, tokenizer } from './fake-engine.js';

export interface Reply {
  status: number;
  headers: IncomingMessage['headers'];
  text: string;
  // biome-ignore lint/suspicious/noExplicitAny: tests look at any JSON.
  json: any;
}

export interface Sent {
  method?: string;
  body?: unknown;
  headers?: Record<string, string>;
  agent?: Agent;
}

/** A connection of its own for each request. */
const alone = () => new Agent({ keepAlive: false });

/** Opens a request; bytes and texts are sent as they are, anything else as JSON. */
export function open(url: string, { method, body, headers = {}, agent = alone() }: Sent) {
  const isRaw = typeof body === 'string' || Buffer.isBuffer(body);
  const payload = body === undefined || isRaw ? body : JSON.stringify(body);
  const type = payload === undefined ? {} : { 'content-type': 'application/json' };
  const how = method ?? (payload === undefined ? 'GET' : 'POST');
  const sent = request(url, { method: how, headers: { ...type, ...headers }, agent });
  sent.end(payload);
  return sent;
}

/** Resolves when the answer has begun. */
export function begin(url: string, sent: Sent): Promise<IncomingMessage> {
  const opened = open(url, sent);
  return new Promise((resolve, reject) => opened.once('response', resolve).once('error', reject));
}

/** The whole answer. */
export async function ask(url: string, sent: Sent = {}): Promise<Reply> {
  const response = await begin(url, sent);
  const chunks: Buffer[] = [];
  for await (const chunk of response) chunks.push(chunk as Buffer);
  const text = Buffer.concat(chunks).toString();
  const isJson = response.headers['content-type']?.startsWith('application/json');
  const { statusCode: status = 0, headers } = response;
  return { status, headers, text, json: isJson && text ? JSON.parse(text) : null };
}

/** The objects of an event stream without its comments, and whether it ended as it should. */
// biome-ignore lint/suspicious/noExplicitAny: tests look at any JSON.
export function eventsOf(text: string): { events: any[]; isDone: boolean } {
  const blocks = text.split('\n\n').filter((block) => block !== '' && !block.startsWith(':'));
  const data = blocks.map((block) => block.replace(/^data: /, ''));
  const isDone = data.at(-1) === '[DONE]';
  return { events: data.slice(0, isDone ? -1 : undefined).map((text) => JSON.parse(text)), isDone };
}

/** Runs `body` against a server of a fake engine, which it leaves without work. */
export async function withServer(
  body: (url: string, engine: FakeEngine, server: InferenceServer) => Promise<void>,
  options: ServeOptions = {},
  engine = new FakeEngine(tokenizer),
): Promise<void> {
  const server = await serve(engine, { port: 0, ...options });
  try {
    await body(server.url, engine, server);
    assert.equal(engine.active, 0);
  } finally {
    await server.kill();
  }
}

/** Resolves when `condition` holds. */
export async function until(condition: () => boolean): Promise<void> {
  while (!condition()) await new Promise((resolve) => setTimeout(resolve, 2));
}
