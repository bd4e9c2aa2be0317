// The paths of the server and their handlers.

import type { IncomingMessage, ServerResponse } from 'node:http';
import type { JsonObject } from '../../types/json.js';
import { required } from '../runtime/required.js';
import type { Access } from './access.js';
import { describeModels, loadAdapter, unloadAdapter } from './adapters.js';
import type { Admission } from './admission.js';
import { answerParsed, type Counter } from './answer-request.js';
import { ApiError, engineFailed, noModel, overloaded, unsupported } from './api-error.js';
import type { BodyBudget } from './body-budget.js';
import type { ChatPage } from './chat-page.js';
import { readChat } from './chat-request.js';
import { readCompletion } from './completion-request.js';
import type { Cors } from './cors.js';
import { embeddings, rerank } from './embeddings.js';
import type { QueueClient } from './fair-queue.js';
import type { Hosts } from './hosts.js';
import type { ResolvedLimits } from './limits.js';
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

/** The parts of a server that its routes use. */
interface ServerContext extends Counter {
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
  /** When it was started, in seconds since 1970. */
  readonly started: number;
  /** Null while it is loading. */
  readonly served: ServedModel | null;
  /** Several models; null for one. */
  readonly pool: ModelPool | null;
  readonly isStopping: boolean;
  /** The connection of a request that may be answered is one of the last that are closed. */
  trust(request: IncomingMessage): void;
  /** The error after which the engine computes nothing more; null while it works. */
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

/** The handlers, by path and method. */
const ROUTES: Readonly<Record<string, Route>> = {
  '/health': { GET: health },
  '/metrics': { GET: metrics },
  '/v1/models': { GET: models },
  '/v1/completions': { POST: parsedBy(readCompletion) },
  '/v1/chat/completions': { POST: parsedBy(readChat) },
  '/v1/responses': { POST: parsedBy(readOwnResponse) },
  '/v1/load_lora_adapter': { POST: changedBy(loadAdapter) },
  '/v1/unload_lora_adapter': { POST: changedBy(unloadAdapter) },
  '/v1/embeddings': { POST: answeredBy(embeddings) },
  '/v1/rerank': { POST: answeredBy(rerank) },
  '/rerank': { POST: answeredBy(rerank) },
  '/tokenizer_info': { GET: tokenizerInfo },
  '/tokenize': { POST: answeredBy(tokenize) },
  '/detokenize': { POST: answeredBy(detokenize) },
};

/** Serves a file of the chat page. */
const PAGE: Route = {
  GET: ({ page }, request, response) => page?.answer(pathOf(request), response),
};

/** Of a target that may be a whole URL, as proxies send it. Source: RFC 9112, 3.2.2. */
const pathOf = ({ url = '/' }: IncomingMessage): string =>
  required(url.replace(/^https?:\/\/[^/?]*/i, '').split('?')[0]);

const isGuarded = (path: string): boolean =>
  /^\/(v1(\/|$)|((de)?tokenize|tokenizer_info|rerank)$)/.test(path);

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
  const route = context.page?.has(path) ? PAGE : routeOf(path);
  const method = request.method === 'HEAD' ? 'GET' : request.method;
  const handler = Object.hasOwn(route, method ?? '') ? route[method as 'GET'] : undefined;
  if (!handler) {
    const allow = Object.keys(route).join(', ');
    throw new ApiError(405, `${path.slice(0, 60)}: expected ${allow}, got another method.`, {
      headers: { allow },
    });
  }
  await handler(context, request, response);
}

function routeOf(path: string): Route {
  if (path.startsWith(MODELS)) return { GET: model };
  if (path.startsWith(RESPONSES)) return { GET: storedResponse, DELETE: deleteResponse };
  if (Object.hasOwn(ROUTES, path)) return required(ROUTES[path]);
  const known = Object.keys(ROUTES).join(', ');
  throw new ApiError(404, `path: expected ${known}, got ${path.slice(0, 60)}.`);
}

function health(context: ServerContext, _: IncomingMessage, response: ServerResponse): void {
  const { served, pool, isStopping, failure } = context;
  if (failure) {
    sendJson(response, 503, { status: 'failed', reason: failure.message });
    return;
  }
  const status = isStopping ? 'stopping' : served || pool ? 'ok' : 'loading';
  const models = pool && { models: statesOf(pool) };
  sendJson(response, status === 'ok' ? 200 : 503, { status, ...models });
}

function metrics(context: ServerContext, _: IncomingMessage, response: ServerResponse): void {
  const { served, pool } = context;
  const one = served ? engineMetrics(new Map([[null, served.engine.stats()]])) : [];
  const lines = pool ? [...engineMetrics(pool.stats()), ...poolMetrics(pool)] : one;
  send(response, 200, context.metrics.text(lines), PROMETHEUS);
}

function models(context: ServerContext, _: IncomingMessage, response: ServerResponse): void {
  sendJson(response, 200, { object: 'list', data: describeContext(context) });
}

/** With several models, the query names one: `?model=NAME`. */
async function tokenizerInfo(
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

function model(context: ServerContext, request: IncomingMessage, response: ServerResponse): void {
  const wanted = decodeText(pathOf(request).slice(MODELS.length));
  const all = describeContext(context);
  const found = all.find(({ id }) => id === wanted);
  if (!found) {
    throw noModel(
      wanted,
      all.map(({ id }) => id),
    );
  }
  sendJson(response, 200, found);
}

/** The entries of /v1/models. */
function describeContext(context: ServerContext): ({ id: string } & JsonObject)[] {
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

/** A client's responses are found with its key only. */
const ownerOf = ({ headers }: IncomingMessage): string => headers.authorization ?? '';

function readOwnResponse(
  body: JsonObject,
  served: ServedModel,
  request: IncomingMessage,
  { responses: store }: ServerContext,
): ParsedRequest {
  return readResponse(body, served, { store, owner: ownerOf(request) });
}

function storedResponse(
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

/** Checks a body; some also use the request and the server. */
type ReadBody = (
  body: JsonObject,
  served: ServedModel,
  request: IncomingMessage,
  context: ServerContext,
) => ParsedRequest;

/** A handler of requests that `read` understands. */
function parsedBy(read: ReadBody): Handler {
  return async (context, request, response) => {
    await withBody(context, response, async (body, served) => {
      requireGenerator(served);
      const parsed = read(body, served, request, context);
      const client = context.access.require(request);
      if (client) parsed.options.client = client;
      await admit(context, request, () => answerParsed(served, parsed, response, context));
    });
  };
}

function requireGenerator({ engine: { encoder } }: ServedModel): void {
  if (!encoder) return;
  const route = encoder.task === 'embedding' ? '/v1/embeddings' : '/v1/rerank';
  throw unsupported('model', `it generates no text; this model answers ${route}`);
}

/** A handler of requests that `answer` answers with an object. */
function answeredBy(
  answer: (body: JsonObject, served: ServedModel, asker: QueueClient) => Promise<JsonObject>,
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

/** A handler of requests that change the adapters. */
function changedBy(change: typeof loadAdapter): Handler {
  return (context, _, response) =>
    withBody(context, response, (body, served) =>
      change({ access: context.access, served, body, response }),
    );
}

/**
 * Calls `act` with the body of a request and its model. The bytes of the body count, and the model
 * stays loaded, until `act` has ended.
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
    lease = await acquire(context, nameIn(body), response);
    await act(body, lease.served);
  } finally {
    lease?.release();
    reservation.close();
  }
}

/** The model that a body names. The reader of the body refuses other values than texts. */
function nameIn(body: JsonObject): string | undefined {
  const { model } = body;
  return typeof model === 'string' ? model : undefined;
}

/**
 * The model of a request. If a pool has to load it first, the request counts as one under way. Its
 * client may leave, and its time may end meanwhile.
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
  let found: Lease | null = null;
  await admit(context, response.req, () => {
    const ownLife = new RequestLife(response, context.limits.requestSeconds);
    return whileAlive(context.lives, ownLife, async (life) => {
      found = await pool.acquire(name, life.signal);
    });
  });
  return required<Lease>(found);
}

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
  if (failure) throw engineFailed(failure);
  if (isStopping) throw overloaded('The server is stopping.', { code: 'stopping' });
}

function requireLoaded(context: ServerContext): ServedModel {
  requireRunning(context);
  if (context.served) return context.served;
  throw overloaded('The model is loading.', { code: 'loading' });
}

/** Before the body of a request is read: the server may take it. */
const requireReady = (context: ServerContext): unknown =>
  context.pool ? requireRunning(context) : requireLoaded(context);
