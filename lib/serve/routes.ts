// Routes of the server and their handlers.

import type { IncomingMessage, ServerResponse } from 'node:http';
import type { JsonObject } from '../../types/json.js';
import { required } from '../runtime/required.js';
import { type Access, keyOf } from './access.js';
import { describeModels, loadAdapter, type ModelEntry, unloadAdapter } from './adapters.js';
import type { Admission } from './admission.js';
import { generateAnswer, type RequestContext } from './answer-request.js';
import {
  ApiError,
  engineFailedError,
  noModelError,
  overloadedError,
  unsupportedError,
} from './api-error.js';
import type { BodyBudget } from './body-budget.js';
import type { ChatPage } from './chat-page.js';
import { readChat } from './chat-request.js';
import { readCompletion } from './completion-request.js';
import type { Cors } from './cors.js';
import { embeddings, rerank } from './embeddings.js';
import type { QueueClient } from './fair-queue.js';
import type { Hosts } from './hosts.js';
import type { ResolvedLimits } from './limits.js';
import { countTokens, readMessages } from './messages/messages-request.js';
import { engineMetrics } from './metrics.js';
import type { Lease, ModelPool } from './model-pool.js';
import type { ParsedRequest } from './parsed-request.js';
import { describePooled, poolMetrics, statesOf } from './pool-routes.js';
import { readJson } from './request-body.js';
import { RequestLife, whileAlive } from './request-life.js';
import { readResponse } from './responses/response-request.js';
import type { ResponseStore } from './responses/response-store.js';
import { send, sendJson } from './send.js';
import type { ServedModel } from './served-model.js';
import { describeTokenizer, detokenize, tokenize } from './tokenize.js';

/** The parts of a server that routes use. */
interface ServerContext extends RequestContext {
  readonly access: Access;
  /** Null if the server accepts any Host header. */
  readonly hosts: Hosts | null;
  readonly cors: Cors;
  readonly admission: Admission;
  readonly bodies: BodyBudget;
  readonly limits: ResolvedLimits;
  readonly responses: ResponseStore;
  /** Null without the option `ui`. */
  readonly page: ChatPage | null;
  /** Start time in seconds since 1970. */
  readonly started: number;
  /** The model; null while it loads, and for a server with a pool. */
  readonly served: ServedModel | null;
  /** The models of a server with several models; null for one model. */
  readonly pool: ModelPool | null;
  readonly isStopping: boolean;
  /** Marks the connection of an accepted request. The server closes marked connections last. */
  trust(request: IncomingMessage): void;
  /** The permanent failure of the engine; null while it works. */
  readonly failure: Error | null;
}

type Handler = (
  context: ServerContext,
  request: IncomingMessage,
  response: ServerResponse,
) => void | Promise<void>;
type Route = Partial<Record<'GET' | 'POST' | 'DELETE', Handler>>;

const PROMETHEUS = { 'content-type': 'text/plain; version=0.0.4; charset=utf-8' };
const MODELS = '/v1/models/';
const RESPONSES = '/v1/responses/';

/** Handlers by path and method. */
const ROUTES: Readonly<Record<string, Route>> = {
  '/health': { GET: answerHealth },
  '/metrics': { GET: answerMetrics },
  '/v1/models': { GET: answerModels },
  '/v1/completions': { POST: handleGeneration(readCompletion) },
  '/v1/chat/completions': { POST: handleGeneration(readChat) },
  '/v1/messages': { POST: handleGeneration(readMessages) },
  '/v1/messages/count_tokens': { POST: handleObject(countTokens) },
  '/v1/responses': { POST: handleGeneration(readStoredRequest) },
  '/v1/load_lora_adapter': { POST: handleAdapters(loadAdapter) },
  '/v1/unload_lora_adapter': { POST: handleAdapters(unloadAdapter) },
  '/v1/embeddings': { POST: handleObject(embeddings) },
  '/v1/rerank': { POST: handleObject(rerank) },
  '/v2/rerank': { POST: handleObject(rerank) },
  '/rerank': { POST: handleObject(rerank) },
  '/tokenizer_info': { GET: answerTokenizerInfo },
  '/tokenize': { POST: handleObject(tokenize) },
  '/detokenize': { POST: handleObject(detokenize) },
};

/** Serves a file of the chat page. */
const PAGE: Route = {
  GET: ({ page }, request, response) => page?.answer(pathOf(request), response),
};

/** Returns the path of a request. Proxies may send a complete URL. Source: RFC 9112, 3.2.2. */
export const pathOf = ({ url = '/' }: IncomingMessage): string =>
  required(url.replace(/^https?:\/\/[^/?]*/i, '').split('?')[0]);

/** Returns whether a path needs a key. /health, /metrics and the chat page need none. */
const isGuarded = (path: string): boolean =>
  /^\/(v[12](\/|$)|((de)?tokenize|tokenizer_info|rerank)$)/.test(path);

/** Answers a request, or throws an ApiError. */
export async function answerRequest(
  context: ServerContext,
  request: IncomingMessage,
  response: ServerResponse,
): Promise<void> {
  const path = pathOf(request);
  if (request.headers.host === undefined && request.httpVersion === '1.1') {
    throw new ApiError(400, 'Host: expected a header, got no such header.'); // RFC 9112, 3.2.
  }
  context.hosts?.require(request);
  if (context.cors.answer(request, response)) return;
  if (isGuarded(path)) context.access.require(request);
  context.trust(request);
  const route = context.page?.has(path) ? PAGE : findRoute(path);
  const method = request.method === 'HEAD' ? 'GET' : request.method;
  const handler = Object.hasOwn(route, method ?? '') ? route[method as 'GET'] : undefined;
  if (!handler) throw methodError(path, route, request);
  await handler(context, request, response);
}

/** 405: the path has no such method. */
function methodError(path: string, route: Route, { method, headers }: IncomingMessage): ApiError {
  const allow = Object.keys(route).join(', ');
  const isPreflight = headers['access-control-request-method'] !== undefined;
  const advice = isPreflight ? ' Start the server with --cors ORIGIN to permit a web page.' : '';
  const message = `${path.slice(0, 60)}: expected ${allow}, got ${method}.${advice}`;
  return new ApiError(405, message, { headers: { allow } });
}

function findRoute(path: string): Route {
  const known = path.replace(/(?<=.)\/$/, '');
  if (known === '/v1/models') return required(ROUTES[known]);
  if (path.startsWith(MODELS)) return { GET: answerModel };
  if (path.startsWith(RESPONSES)) return { GET: sendStoredResponse, DELETE: deleteResponse };
  if (Object.hasOwn(ROUTES, path)) return required(ROUTES[path]);
  const paths = Object.keys(ROUTES).join(', ');
  const message = `path: got ${path.slice(0, 60)}, which this server does not have. ${advisePath(known)}Paths: ${paths}.`;
  throw new ApiError(404, message);
}

/** Names of health checks on other servers. */
const HEALTH = /^\/(v1\/health|healthz?|livez?|readyz?|ping|status)$/;
/** Paths of the own APIs of Ollama, LM Studio and llama.cpp. */
const OTHER_APIS = /^\/(api(\/|$)|completion$|infill$|props$|slots$|apply-template$)/;

/** Returns a sentence with the path that the client means; "" for an unknown path. */
function advisePath(path: string): string {
  const short = path.replace(/^\/v1(?=\/v1\/)/, '');
  const meant = [short, `/v1${short}`].find((name) => Object.hasOwn(ROUTES, name));
  if (meant !== undefined) return `Did you mean ${meant}? Correct the base URL. `;
  if (path === '/') return 'Start the server with --ui for a page to chat. ';
  if (path === '/v1') return 'This is the base URL: clients add the rest. ';
  if (HEALTH.test(path)) return 'Did you mean /health? ';
  if (!OTHER_APIS.test(path)) return '';
  return 'It belongs to the API of another server: set your client to "OpenAI compatible", with a base URL that ends in /v1. ';
}

function answerHealth(context: ServerContext, _: IncomingMessage, response: ServerResponse): void {
  const { served, pool, isStopping, failure } = context;
  if (failure) {
    sendJson(response, 503, { status: 'failed', reason: failure.message });
    return;
  }
  const status = isStopping ? 'stopping' : served || pool ? 'ok' : 'loading';
  const models = pool && { models: statesOf(pool) };
  sendJson(response, status === 'ok' ? 200 : 503, { status, ...models });
}

function answerMetrics(context: ServerContext, _: IncomingMessage, response: ServerResponse): void {
  const { served, pool } = context;
  const engineLines = served ? engineMetrics(new Map([[null, served.engine.stats()]])) : [];
  const lines = pool ? [...engineMetrics(pool.stats()), ...poolMetrics(pool)] : engineLines;
  send(response, 200, context.metrics.text(lines), PROMETHEUS);
}

function answerModels(
  context: ServerContext,
  request: IncomingMessage,
  response: ServerResponse,
): void {
  const models = describeContext(context);
  const isAnthropic = request.headers['anthropic-version'] !== undefined;
  const list = isAnthropic ? describeAnthropic(models) : { object: 'list', data: models };
  sendJson(response, 200, list);
}

/** Returns the list in the format of Anthropic's API. All models are on one page. */
function describeAnthropic(models: readonly ModelEntry[]): JsonObject {
  const data = models.map((model) => ({
    ...model,
    type: 'model',
    display_name: model.id,
    created_at: new Date(1000 * model.created).toISOString(),
  }));
  const [first_id, last_id] = [models.at(0)?.id ?? null, models.at(-1)?.id ?? null];
  return { data, has_more: false, first_id, last_id };
}

/** Answers /tokenizer_info. With several models, the query selects one: `?model=NAME`. */
async function answerTokenizerInfo(
  context: ServerContext,
  request: IncomingMessage,
  response: ServerResponse,
): Promise<void> {
  const query = new URLSearchParams(request.url?.split('?')[1] ?? '');
  const lease = await acquire(context, query.get('model') ?? undefined, response);
  try {
    sendJson(response, 200, describeTokenizer(lease.served));
  } finally {
    lease.release();
  }
}

function answerModel(
  context: ServerContext,
  request: IncomingMessage,
  response: ServerResponse,
): void {
  const requestedId = decodeText(pathOf(request).slice(MODELS.length));
  const all = describeContext(context);
  const found = all.find(({ id }) => id === requestedId);
  if (!found) {
    throw noModelError(
      requestedId,
      all.map(({ id }) => id),
    );
  }
  sendJson(response, 200, found);
}

/** Returns the entries of /v1/models. */
function describeContext(context: ServerContext): ModelEntry[] {
  requireRunning(context);
  const { pool, started } = context;
  if (pool) return pool.models.map((model) => describePooled(model, started));
  return describeModels(requireLoaded(context), started);
}

function decodeText(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** Returns the owner of a client's responses: its key. */
const ownerOf = ({ headers }: IncomingMessage): string => keyOf(headers) ?? '';

function readStoredRequest(
  body: JsonObject,
  served: ServedModel,
  request: IncomingMessage,
  { responses: store }: ServerContext,
): ParsedRequest {
  return readResponse(body, served, { store, owner: ownerOf(request) });
}

function sendStoredResponse(
  context: ServerContext,
  request: IncomingMessage,
  response: ServerResponse,
): void {
  const id = decodeText(pathOf(request).slice(RESPONSES.length));
  sendJson(response, 200, context.responses.find(id, ownerOf(request)).response);
}

function deleteResponse(
  context: ServerContext,
  request: IncomingMessage,
  response: ServerResponse,
): void {
  const id = decodeText(pathOf(request).slice(RESPONSES.length));
  context.responses.delete(id, ownerOf(request));
  sendJson(response, 200, { id, object: 'response', deleted: true });
}

/** Parses a body. Some parsers also use the request and the server. */
type ReadBody = (
  body: JsonObject,
  served: ServedModel,
  request: IncomingMessage,
  context: ServerContext,
) => ParsedRequest;

/** Returns a handler that generates an answer to the request that `read` parses. */
function handleGeneration(read: ReadBody): Handler {
  return async (context, request, response) => {
    await withBody(context, response, async (body, served) => {
      requireGenerator(served);
      const parsed = read(body, served, request, context);
      const client = context.access.require(request);
      if (client) parsed.options.client = client;
      await admit(context, request, () => generateAnswer(served, parsed, response, context));
    });
  };
}

function requireGenerator({ engine: { encoder } }: ServedModel): void {
  if (!encoder) return;
  const route = encoder.task === 'embedding' ? '/v1/embeddings' : '/v1/rerank';
  throw unsupportedError('model', `it generates no text; this model answers ${route}`);
}

/** Returns a handler that sends the object which `answer` returns. */
function handleObject(
  answer: (body: JsonObject, served: ServedModel, queueClient: QueueClient) => Promise<JsonObject>,
): Handler {
  return async (context, _, response) => {
    await withBody(context, response, async (body, served) => {
      const act = async (life: RequestLife): Promise<void> =>
        sendJson(response, 200, await answer(body, served, life));
      await admit(context, response.req, () => {
        const life = new RequestLife(response, context.limits.requestSeconds);
        return whileAlive(context.lives, life, act);
      });
    });
  };
}

/** Returns a handler that loads or unloads an adapter. */
function handleAdapters(change: typeof loadAdapter): Handler {
  return (context, _, response) =>
    withBody(context, response, (body, served) =>
      change({ access: context.access, served, body, response }),
    );
}

/**
 * Calls `act` with the body of a request and its model. Until `act` ends, the bytes of the body
 * count and the model stays loaded.
 */
async function withBody(
  context: ServerContext,
  response: ServerResponse,
  act: (body: JsonObject, served: ServedModel) => Promise<void>,
): Promise<void> {
  requireReady(context);
  const reservation = context.bodies.open();
  let lease: Lease | null = null;
  try {
    const body = await readJson(response.req, context.limits.bodyBytes, reservation);
    lease = await acquire(context, modelNameIn(body), response);
    await act(body, lease.served);
  } finally {
    lease?.release();
    reservation.close();
  }
}

/** Returns the model that a body names. Parsers refuse values that are not texts. */
function modelNameIn(body: JsonObject): string | undefined {
  const { model } = body;
  return typeof model === 'string' ? model : undefined;
}

/**
 * Leases the model of a request. If a pool must load it, the request counts as running; its client
 * may disconnect meanwhile.
 */
async function acquire(
  context: ServerContext,
  name: string | undefined,
  response: ServerResponse,
): Promise<Lease> {
  const { pool } = context;
  if (!pool) return { served: requireLoaded(context), release: () => {} };
  requireRunning(context);
  const now = pool.now(name);
  if (now) return now;
  let lease: Lease | null = null;
  await admit(context, response.req, () => {
    const ownLife = new RequestLife(response, context.limits.requestSeconds);
    return whileAlive(context.lives, ownLife, async (life) => {
      lease = await pool.acquire(name, life.signal);
    });
  });
  return required<Lease>(lease);
}

/** Calls `act` as one running request of its client. Throws 429 if too many requests run. */
async function admit(
  context: ServerContext,
  request: IncomingMessage,
  act: () => Promise<void>,
): Promise<void> {
  const leave = context.admission.enter(context.access.require(request));
  try {
    await act();
  } finally {
    leave();
  }
}

function requireRunning({ isStopping, failure }: ServerContext): void {
  if (failure) throw engineFailedError(failure);
  if (isStopping) throw overloadedError('The server is stopping.', { code: 'stopping' });
}

function requireLoaded(context: ServerContext): ServedModel {
  requireRunning(context);
  if (context.served) return context.served;
  throw overloadedError('The model is loading.', { code: 'loading' });
}

/** Throws unless the server can take a request. Called before the body is read. */
const requireReady = (context: ServerContext): unknown =>
  context.pool ? requireRunning(context) : requireLoaded(context);
