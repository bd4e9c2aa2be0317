// A server whose model says given texts, for the clients of this folder.
import assert from 'node:assert/strict';
import { type InferenceServer, serve } from '../../lib/serve/index.js';
import { HERMES, ScriptedEngine } from '../serve/scripted-engine.js';

/** Programs in plain JavaScript use the clients so. */
// biome-ignore lint/suspicious/noExplicitAny: their types are not under test.
export type Any = any;

export const MODEL = 'tiny';
/** A call in the text of the model. */
export const call = (name: string, args: object): string =>
  `<tool_call>\n${JSON.stringify({ name, arguments: args })}\n</tool_call>`;
export const SUM = call('add', { a: 1, b: 2 });
export const THOUGHT = '<think>\nI add.\n</think>\n\n';

export const engine = new ScriptedEngine();
let server: InferenceServer;

/** Starts the server before the tests of a file; the result holds its address. */
export function withScriptedServer(): { url: string } {
  const place = { url: '' };
  beforeAll(async () => {
    const chatTemplate = `${HERMES}{# <think></think> #}`;
    server = await serve(engine, { port: 0, model: MODEL, apiKeys: ['key'], chatTemplate });
    place.url = `${server.url}/v1`;
  });
  afterAll(() => server.kill());
  afterEach(() => {
    assert.deepEqual([engine.active, engine.answers], [0, []]);
    engine.failAt = null;
  });
  return place;
}

/** The answers to the next requests. */
export function says(...answers: string[]): void {
  engine.answers.push(...answers);
}

/** All values of an async iterable. */
export async function all<Value>(stream: AsyncIterable<Value>): Promise<Value[]> {
  const values: Value[] = [];
  for await (const value of stream) values.push(value);
  return values;
}
