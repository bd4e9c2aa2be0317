// An inference engine behind HTTP: OpenAI's interface, health and metrics.
import type { IncomingMessage, Server, ServerResponse } from 'node:http';
import type { AddressInfo, Socket } from 'node:net';

import { DsError } from '../errors.js';
import { formatValue } from '../runtime/format-value.js';
import { isLoopback } from '../runtime/loopback.js';
import { readDeclared } from '../runtime/option.js';
import { timerMs } from '../runtime/timer.js';
import { Access } from './access.js';
import { Admission } from './admission.js';
import { ApiError, engineFailed, overloaded } from './api-error.js';
import { BodyBudget } from './body-budget.js';
import { ChatPage } from './chat-page.js';
import { Connections } from './connections.js';
import { Cors } from './cors.js';
import { EngineFailure } from './engine-failure.js';
import { Hosts } from './hosts.js';
import { type ResolvedLimits, readLimits } from './limits.js';
import { Metrics } from './metrics.js';
import type { ModelPool } from './model-pool.js';
import { requireSize } from './request-body.js';
import type { RequestLife } from './request-life.js';
import { ResponseStore } from './responses/response-store.js';
import { answerRequest } from './routes.js';
import { sendError } from './send.js';
import { SERVE, type ServeOptions, type ServeSettings } from './serve-options.js';
import type { ServedEngine } from './served-engine.js';
import { type ServedModel, servedModel } from './served-model.js';

/**
 * Starts a server for `engine`: an engine, a promise of one, or a function that serve() calls once
 * the server listens. Until the engine is ready, the server answers 503 `loading`. The caller owns
 * the engine. Rejects with DS_ARGUMENT for invalid options, DS_IO if the address is not free.
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
  server.ready.catch(() => {}); // A caller that waits for `ready` gets the error; a caller need not wait.
  return server;
}

/** serve() for several models, which the pool loads on demand. The server closes the pool. */
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
  /** When it was started, in seconds since 1970. */
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
  /** The limits, with defaults. */
  readonly limits: ResolvedLimits;
  /** Resolves when the model is loaded; rejects with the error of the engine's start. */
  ready: Promise<void> = Promise.resolve();
  /** @internal Null while it is loading. */
  served: ServedModel | null = null;
  /** @internal Several models; null for one. */
  pool: ModelPool | null = null;
  /** stop() or kill() was called. */
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
      (error) => this.endAll(engineFailed(error)),
    );
    this.limits = options.limits ?? readLimits('serve limits');
    this.access = new Access(options.apiKeys);
    this.hosts = new Hosts(options.allowedHosts);
    this.cors = new Cors(options.cors);
    const { requests, keyRequests } = this.limits;
    // By default, one key leaves room for the others.
    const usual = this.access.size > 1 ? Math.ceil(requests / 2) : requests;
    this.admission = new Admission(requests, keyRequests ?? usual);
    this.bodies = new BodyBudget(this.limits.bodiesBytes);
    this.page = options.ui ? new ChatPage() : null;
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
   * The error after which the engine computes nothing more; null while it works. Once there is one,
   * the server ends all requests with it, and /health answers 503.
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

  /** Open connections, idle ones included. */
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
      // The kernel drops bytes of clients beyond the backlog. They come again seconds later, when
      // the time of the headers may be over.
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
    this.served = servedModel(await engine(), name, this.limits, { ...reading, threads });
    if (!this.isStopping) this.engineFailure.watch();
  }

  /** @internal */
  openPool(pool: ModelPool): void {
    const { model: _, tokenizerThreads: threads, ...reading } = this.options;
    pool.bind(
      (engine, name) => servedModel(engine, name, this.limits, { ...reading, threads }),
      this.options.report ?? console.error,
    );
    this.pool = pool;
    this.engineFailure.watch();
  }

  /**
   * Accepts no more requests, waits `limits.drainSeconds` at most for running ones, and closes all
   * connections. Resolves when all are closed.
   */
  stop(): Promise<void> {
    this.stopping ??= this.drain();
    return this.stopping;
  }

  /** Ends running requests at once, then closes all connections. */
  async kill(): Promise<void> {
    this.endAll(overloaded('The server is stopping.', { code: 'stopping' }));
    await this.stop();
  }

  /** @internal The answer to a client for any error. */
  readonly apiError = (thrown: unknown): ApiError => {
    const { failure } = this;
    if (failure && !(thrown instanceof ApiError)) return engineFailed(failure);
    return ApiError.from(thrown, this.options.report ?? console.error);
  };

  private async drain(): Promise<void> {
    this.isStopping = true;
    const closed = new Promise<void>((resolve) => this.http.close(() => resolve()));
    this.connections.close();
    const timer = setTimeout(
      () => this.endAll(overloaded('The server is stopping.', { code: 'stopping' })),
      timerMs(this.limits.drainSeconds),
    );
    await this.admission.close();
    clearTimeout(timer);
    // The last answers are in the sockets' buffers. Clients that do not read them are cut off.
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
    this.connections.began(response);
    request.on('error', () => {}); // The reader of the body gets the error.
    response.on('error', () => {});
    try {
      await answerRequest(this, request, response);
    } catch (thrown) {
      this.refuse(response, this.apiError(thrown));
    }
    this.metrics.responded(response.headersSent ? response.statusCode : CLIENT_GONE);
    this.limitFinalWrite(response);
  };

  /**
   * Closes the connection if even an error answer fails. Without a free file, the first use of a
   * module fails (EMFILE).
   */
  private async guard(socket: Socket, act: () => unknown): Promise<void> {
    try {
      await act();
    } catch (error) {
      socket.destroy();
      this.reportShortage(error);
    }
  }

  /** No file is left for a new connection: closes a connection without a request. */
  private readonly onAcceptError = (error: Error): void => {
    this.connections.makeRoom();
    this.reportShortage(error);
  };

  /** Reports once a minute at most. */
  private reportShortage(error: unknown): void {
    const now = performance.now();
    if (now - this.reportedAt < REPORT_MS) return;
    this.reportedAt = now;
    (this.options.report ?? console.error)(error);
  }

  /** A client that sends "Expect: 100-continue" gets its refusal before it sends the body. */
  private readonly onExpected = (request: IncomingMessage, response: ServerResponse): unknown => {
    try {
      requireSize(request, this.limits.bodyBytes);
    } catch (thrown) {
      this.connections.began(response);
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
    this.connections.began(response);
    this.refuse(response, new ApiError(417, `Expect: expected "100-continue", got ${got}.`));
  };

  /**
   * Answers a request that is not HTTP or came too slowly. If the connection has answers under way,
   * it is closed instead, and these stay incomplete.
   */
  private readonly onClientError = (error: NodeJS.ErrnoException, socket: Socket): void => {
    if (this.connections.isClosing(socket)) return;
    const isUnreachable = !socket.writable || error.code === 'ECONNRESET';
    if (isUnreachable || this.connections.isAnswering(socket)) {
      if (!isUnreachable && this.connections.hasEnded(socket)) this.connections.linger(socket);
      else socket.destroy();
      return;
    }
    const [status, words, message] = clientErrors.get(error.code) ?? noRequest;
    const body = JSON.stringify(new ApiError(status, message).body);
    const head = `HTTP/1.1 ${status} ${words}\r\nConnection: close\r\nContent-Type: application/json`;
    socket.write(`${head}\r\nContent-Length: ${Buffer.byteLength(body)}\r\n\r\n${body}`);
    this.connections.linger(socket);
  };

  /**
   * Answers with an error. Clients without a key keep no connection. Neither does an incomplete
   * request: Node would read the rest of it for as long as its client sends.
   */
  private refuse(response: ServerResponse, error: ApiError): void {
    const isForeign = error.status === 401 || error.status === 403;
    if (isForeign || !response.req.complete) this.connections.closeAfter(response);
    sendError(response, error);
  }

  /** Closes the connection if the client does not read the rest of its answer in time. */
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
/** The status that nginx counts if the client has gone. */
const CLIENT_GONE = 499;
/** Milliseconds that connections have for their last bytes when a server stops. */
const FAREWELL_MS = 2000;

/** Status, reason phrase and message of an unreadable request. */
type Unreadable = readonly [status: number, words: string, message: string];
const noRequest: Unreadable = [400, 'Bad Request', 'This is no HTTP/1.1 request.'];
const clientErrors: ReadonlyMap<string | undefined, Unreadable> = new Map([
  ['ERR_HTTP_REQUEST_TIMEOUT', [408, 'Request Timeout', 'The request came too slowly.']],
  [
    'HPE_HEADER_OVERFLOW',
    [431, 'Request Header Fields Too Large', 'The headers are longer than 16 KiB.'],
  ],
]);
