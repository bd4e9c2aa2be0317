// The HTTP server: OpenAI-compatible routes, health and metrics.
import type { IncomingMessage, Server, ServerResponse } from 'node:http';
import type { AddressInfo, Socket } from 'node:net';

import { DsError } from '../errors.js';
import { formatValue } from '../runtime/format-value.js';
import { argumentError } from '../runtime/input-errors.js';
import { isLoopback } from '../runtime/loopback.js';
import { readDeclared } from '../runtime/option.js';
import { timerMs } from '../runtime/timer.js';
import { Access } from './access.js';
import { Admission } from './admission.js';
import { ApiError, engineFailedError, overloadedError } from './api-error.js';
import { BodyBudget } from './body-budget.js';
import { ChatPage } from './chat-page.js';
import { Connections } from './connections.js';
import { Cors } from './cors.js';
import { EngineFailure } from './engine-failure.js';
import { Hosts } from './hosts.js';
import { type ResolvedLimits, readLimits } from './limits.js';
import { isMessagesPath, sendMessagesError } from './messages/messages-error.js';
import { Metrics } from './metrics.js';
import type { ModelPool } from './model-pool.js';
import { requireSize } from './request-body.js';
import type { RequestLife } from './request-life.js';
import { RequestLog } from './request-log.js';
import { ResponseStore } from './responses/response-store.js';
import { answerRequest, pathOf } from './routes.js';
import { sendError } from './send.js';
import { SERVE, type ServeOptions, type ServeSettings } from './serve-options.js';
import type { ServedEngine } from './served-engine.js';
import { createServedModel, type ServedModel } from './served-model.js';

/**
 * Starts a server for `engine`: an engine, a promise of one, or a function that serve() calls when
 * the server listens. Until the engine is ready, requests get 503 `loading`. The caller owns the
 * engine. Rejects with DS_ARGUMENT for invalid options, and with DS_IO if the address is in use.
 */
export async function serve(
  engine:
    | (ServedEngine | PromiseLike<ServedEngine>)
    | (() => ServedEngine | PromiseLike<ServedEngine>),
  given: ServeOptions = {},
): Promise<InferenceServer> {
  const server = new InferenceServer(readDeclared('serve', given, SERVE));
  await server.listen();
  server.ready = server.open(typeof engine === 'function' ? engine : () => engine);
  server.ready.catch(() => {}); // Callers that wait for `ready` get the error; others need not.
  return server;
}

/**
 * Starts a server for several models, which the pool loads on demand. The server closes the pool.
 */
export async function servePool(
  pool: ModelPool,
  given: ServeOptions = {},
): Promise<InferenceServer> {
  const server = new InferenceServer(readDeclared('serve', given, SERVE));
  await server.listen();
  server.openPool(pool);
  return server;
}

/** A running HTTP server; serve() creates it. */
export class InferenceServer {
  /** Ends all requests with `error`. */
  private readonly endAll = (error: ApiError): void => {
    for (const life of this.lives) life.end(error);
  };
  /** Start time in seconds since 1970. */
  readonly started = Math.floor(Date.now() / 1000);
  /** @internal */
  readonly metrics = new Metrics();
  /** @internal */
  readonly lives = new Set<RequestLife>();
  /** @internal */
  readonly access: Access;
  /** @internal Null if the server accepts any Host header. */
  hosts: Hosts | null;
  /** @internal */
  readonly cors: Cors;
  /** @internal */
  readonly admission: Admission;
  /** @internal */
  readonly bodies: BodyBudget;
  /** @internal */
  readonly responses = new ResponseStore();
  /** @internal Null without the option `ui`. */
  readonly page: ChatPage | null;
  /** @internal Null without the option `logRequests`. */
  readonly log: RequestLog | null;
  /** The limits, with defaults. */
  readonly limits: ResolvedLimits;
  /** Resolves when the model is loaded. Rejects if the engine does not start. */
  ready: Promise<void> = Promise.resolve();
  /** @internal The model; null while it loads, and for a server with a pool. */
  served: ServedModel | null = null;
  /** @internal The models of a server with several models; null for one model. */
  pool: ModelPool | null = null;
  /** Whether stop() or kill() was called. */
  isStopping = false;
  private readonly http: Server;
  private readonly connections: Connections;
  private stopping: Promise<void> | null = null;
  private reportedAt = -REPORT_MS;
  private readonly engineFailure: EngineFailure;

  /** @internal */
  constructor(private readonly options: ServeSettings) {
    this.engineFailure = new EngineFailure(
      () => this.served?.engine ?? this.pool?.failed,
      (error) => this.endAll(engineFailedError(error)),
    );
    this.limits = options.limits ?? readLimits('serve limits');
    this.access = new Access(options.apiKeys);
    this.hosts = new Hosts(options.allowedHosts);
    this.cors = new Cors(options.cors);
    this.admission = new Admission(this.limits.requests, this.maxOfKey);
    this.bodies = new BodyBudget(this.limits.bodiesBytes);
    this.page = options.ui ? new ChatPage() : null;
    this.log = options.logRequests ? new RequestLog((line) => console.log(line)) : null;
    const bodyMs = timerMs(this.limits.bodySeconds);
    const headMs = Math.min(timerMs(this.limits.headSeconds), bodyMs);
    // The module loads slowly, and most programs do not serve.
    const { createServer } = require('node:http') as typeof import('node:http');
    this.http = createServer({
      requestTimeout: bodyMs,
      headersTimeout: headMs,
      requireHostHeader: false,
      // Node's default of 30 s would close late connections too late.
      connectionsCheckingInterval: Math.min(Math.ceil(headMs / 4), 5000),
    });
    this.connections = new Connections(this.http, this.limits.connections);
    const guard =
      (answer: (request: IncomingMessage, response: ServerResponse) => unknown) =>
      (request: IncomingMessage, response: ServerResponse) =>
        this.guard(request.socket, () => answer(request, response));
    this.http.on('request', guard(this.onRequest));
    this.http.on('checkContinue', guard(this.onExpected));
    this.http.on('checkExpectation', guard(this.onUnknownExpectation));
    this.http.on('clientError', (error, socket) =>
      this.guard(socket as Socket, () => this.onClientError(error, socket as Socket)),
    );
  }

  /**
   * Replaces the keys that clients must send. Requests in progress continue. Throws DS_ARGUMENT for
   * an empty list, which would admit every client, and for a key that does not fit a header.
   */
  setApiKeys(keys: readonly string[]): void {
    if (Array.isArray(keys) && keys.length === 0)
      throw argumentError('setApiKeys', 'at least one key', 'none');
    this.access.replace(keys);
    this.admission.limitEach(this.maxOfKey);
  }

  /** Maximum number of requests of one key. By default, with several keys, half of all requests. */
  private get maxOfKey(): number {
    const { requests, keyRequests } = this.limits;
    return keyRequests ?? (this.access.size > 1 ? Math.ceil(requests / 2) : requests);
  }

  /**
   * The permanent failure of the engine; null while it works. After a failure, the server ends all
   * requests with it, and /health answers 503.
   */
  get failure(): Error | null {
    return this.engineFailure.check();
  }

  /** Resolves with `failure` when the engine fails. The server runs until stop() is called. */
  get failed(): Promise<Error> {
    return this.engineFailure.found;
  }

  /** The address of the server. */
  get url(): string {
    const { address, port, family } = this.http.address() as AddressInfo;
    return `http://${family === 'IPv6' ? `[${address}]` : address}:${port}`;
  }

  /** Number of open connections, including idle connections. */
  get openConnections(): number {
    return this.connections.count;
  }

  /** @internal */
  listen(): Promise<void> {
    const { host, port } = this.options;
    return new Promise((resolve, reject) => {
      const onError = (cause: Error): void => {
        const expected = 'an address and a port that are free';
        const op = `serve ${host}:${port}`;
        const hint = 'Give another --port, or 0 for any.';
        reject(new DsError({ code: 'DS_IO', op, expected, got: cause.message, hint, cause }));
      };
      this.http.once('error', onError);
      // The kernel drops connections beyond the backlog. Clients retry seconds later, when the time
      // limit of the headers may have passed.
      this.http.listen({ host, port, backlog: this.limits.connections }, () => {
        this.http.off('error', onError).on('error', this.onAcceptError);
        const { address } = this.http.address() as AddressInfo;
        if (!this.access.isOpen || !isLoopback(address)) this.hosts = null;
        resolve();
      });
    });
  }

  /** @internal */
  async open(engine: () => ServedEngine | PromiseLike<ServedEngine>): Promise<void> {
    const { model: name, tokenizerThreads: threads, ...reading } = this.options;
    this.served = createServedModel(await engine(), name, this.limits, { ...reading, threads });
    if (!this.isStopping) this.engineFailure.watch();
  }

  /** @internal */
  openPool(pool: ModelPool): void {
    const { model: _, tokenizerThreads: threads, ...reading } = this.options;
    pool.bind(
      (engine, name) => createServedModel(engine, name, this.limits, { ...reading, threads }),
      this.options.report ?? console.error,
    );
    this.pool = pool;
    this.engineFailure.watch();
  }

  /**
   * Accepts no more requests, waits at most `limits.drainSeconds` for running requests, and closes
   * all connections. Resolves when all connections are closed.
   */
  stop(): Promise<void> {
    this.stopping ??= this.drain();
    return this.stopping;
  }

  /** Ends running requests at once, then closes all connections. */
  async kill(): Promise<void> {
    this.endAll(overloadedError('The server is stopping.', { code: 'stopping' }));
    await this.stop();
  }

  /** @internal Converts any thrown value to the error that the client gets. */
  readonly apiError = (thrown: unknown): ApiError => {
    const { failure } = this;
    if (failure && !(thrown instanceof ApiError)) return engineFailedError(failure);
    return ApiError.from(thrown, this.options.report ?? console.error);
  };

  private async drain(): Promise<void> {
    this.isStopping = true;
    const closed = new Promise<void>((resolve) => this.http.close(() => resolve()));
    this.connections.close();
    const timer = setTimeout(
      () => this.endAll(overloadedError('The server is stopping.', { code: 'stopping' })),
      timerMs(this.limits.drainSeconds),
    );
    await this.admission.close();
    clearTimeout(timer);
    // The last answers are in socket buffers. Clients that do not read them are disconnected.
    const last = setTimeout(() => this.connections.destroy(), FAREWELL_MS);
    await closed;
    clearTimeout(last);
    this.engineFailure.close();
    await this.served?.reader?.close();
    await this.pool?.close();
  }

  /** @internal */
  trust({ socket }: IncomingMessage): void {
    this.connections.trust(socket);
  }

  private readonly onRequest = async (
    request: IncomingMessage,
    response: ServerResponse,
  ): Promise<void> => {
    if (this.connections.isClosing(request.socket)) {
      request.resume();
      return;
    }
    this.connections.add(response);
    request.on('error', () => {}); // The reader of the body gets the error.
    response.on('error', () => {});
    const begun = performance.now();
    try {
      await answerRequest(this, request, response);
    } catch (thrown) {
      this.refuse(response, this.apiError(thrown));
    }
    const status = response.headersSent ? response.statusCode : CLIENT_GONE;
    this.metrics.countResponse(status);
    this.log?.end(response, pathOf(request), status, (performance.now() - begun) / 1000);
    this.limitFinalWrite(response);
  };

  /**
   * Runs `act`. If even an error answer fails, closes the connection: without a free file
   * descriptor, the first use of a module fails (EMFILE).
   */
  private async guard(socket: Socket, act: () => unknown): Promise<void> {
    try {
      await act();
    } catch (error) {
      socket.destroy();
      this.reportShortage(error);
    }
  }

  /** Frees a file descriptor for a new connection: closes a connection without a request. */
  private readonly onAcceptError = (error: Error): void => {
    this.connections.makeRoom();
    this.reportShortage(error);
  };

  /** Reports a shortage of file descriptors, at most once a minute. */
  private reportShortage(error: unknown): void {
    const now = performance.now();
    if (now - this.reportedAt < REPORT_MS) return;
    this.reportedAt = now;
    (this.options.report ?? console.error)(error);
  }

  /** Refuses a request with "Expect: 100-continue" before the client sends the body. */
  private readonly onExpected = (request: IncomingMessage, response: ServerResponse): unknown => {
    try {
      requireSize(request, this.limits.bodyBytes);
    } catch (thrown) {
      this.connections.add(response);
      this.refuse(response, this.apiError(thrown));
      return;
    }
    response.writeContinue();
    return this.onRequest(request, response);
  };

  private readonly onUnknownExpectation = (
    request: IncomingMessage,
    response: ServerResponse,
  ): void => {
    const got = formatValue(request.headers.expect);
    this.connections.add(response);
    this.refuse(response, new ApiError(417, `Expect: expected "100-continue", got ${got}.`));
  };

  /**
   * Answers a request that is not HTTP or came too slowly. If the connection has running answers,
   * closes it instead: the answers stay incomplete.
   */
  private readonly onClientError = (error: NodeJS.ErrnoException, socket: Socket): void => {
    if (this.connections.isClosing(socket)) return;
    const isUnreachable = !socket.writable || error.code === 'ECONNRESET';
    if (isUnreachable || this.connections.isAnswering(socket)) {
      if (!isUnreachable && this.connections.hasEnded(socket)) this.connections.linger(socket);
      else socket.destroy();
      return;
    }
    const [status, words, message] = CLIENT_ERRORS.get(error.code) ?? UNREADABLE;
    const body = JSON.stringify(new ApiError(status, message).body);
    const head = `HTTP/1.1 ${status} ${words}\r\nConnection: close\r\nContent-Type: application/json`;
    socket.write(`${head}\r\nContent-Length: ${Buffer.byteLength(body)}\r\n\r\n${body}`);
    this.connections.linger(socket);
  };

  /**
   * Sends an error. Closes the connection of a client without a key. Also closes it after an
   * incomplete request: Node would read the rest for as long as the client sends.
   */
  private refuse(response: ServerResponse, error: ApiError): void {
    this.log?.addError(response, error);
    const isForeign = error.status === 401 || error.status === 403;
    if (isForeign || !response.req.complete) this.connections.closeAfter(response);
    if (isMessagesPath(pathOf(response.req))) sendMessagesError(response, error);
    else sendError(response, error);
  }

  /** Closes the connection if the client does not read the rest of the answer in time. */
  private limitFinalWrite(response: ServerResponse): void {
    if (response.destroyed || response.writableFinished) return;
    const { unreadSeconds } = this.limits;
    const timer = setTimeout(() => response.destroy(), timerMs(unreadSeconds)).unref();
    response.once('finish', () => clearTimeout(timer));
    response.once('close', () => clearTimeout(timer));
  }
}

/** Milliseconds between two reports of connections that could not be accepted. */
const REPORT_MS = 60_000;
/** nginx's status for a client that has disconnected. */
const CLIENT_GONE = 499;
/** Milliseconds that connections have for their last bytes when the server stops. */
const FAREWELL_MS = 2000;

/** Status, reason phrase and message of an unreadable request. */
type Unreadable = readonly [status: number, words: string, message: string];
const UNREADABLE: Unreadable = [400, 'Bad Request', 'This is no HTTP/1.1 request.'];
const CLIENT_ERRORS: ReadonlyMap<string | undefined, Unreadable> = new Map([
  ['ERR_HTTP_REQUEST_TIMEOUT', [408, 'Request Timeout', 'The request came too slowly.']],
  [
    'HPE_HEADER_OVERFLOW',
    [431, 'Request Header Fields Too Large', 'The headers are longer than 16 KiB.'],
  ],
]);
