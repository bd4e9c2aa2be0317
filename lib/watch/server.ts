// The HTTP server of the watch page: fixed routes, read-only, on loopback by default.

import type { IncomingMessage, Server, ServerResponse } from 'node:http';
import { createRequire } from 'node:module';
import type { AddressInfo } from 'node:net';
import { dirname } from 'node:path';
import { DsError } from '../errors.js';
import { PAGE_HEADERS, type PageFile, pageFolder, readPageFile } from '../runtime/page-files.js';
import { required } from '../runtime/required.js';
import { ParameterError, WatchApi } from './api.js';
import { RequestGuard, readOrCreateToken } from './request-guard.js';
import { RunFolders } from './run-folders.js';

export interface WatchServerOptions {
  /** Folders of runs, or their parent folders. */
  dirs: readonly string[];
  /** Port; 0 selects a free port. */
  port: number;
  /** Address to listen on. Default: 127.0.0.1. */
  host?: string;
  /** Access token. Default: the user's token. */
  token?: string;
  /** Whether each folder must contain a run at the start. */
  requireRuns?: boolean;
}

/** Maximum number of open connections. */
const MAX_CONNECTIONS = 64;
/** Maximum number of answers in progress; further requests get 503. */
const MAX_ANSWERS = 16;
const HEAD_MS = 5000;
const REQUEST_MS = 10_000;

/** Serves the page of several runs. An error of a request becomes its answer. */
export class WatchServer {
  private readonly http: Server;
  private readonly pages = readPageFiles();
  private readonly api: WatchApi;
  private readonly guard: RequestGuard;
  private readonly token: string;
  private pendingAnswers = 0;

  private constructor(private readonly options: WatchServerOptions) {
    const { dirs, host = '127.0.0.1', token = readOrCreateToken(), requireRuns = false } = options;
    const folders = new RunFolders(dirs);
    if (requireRuns) folders.requireRuns();
    this.token = token;
    this.api = new WatchApi(folders);
    this.guard = new RequestGuard(token, host);
    // Required here, because the module loads slowly and most programs do not serve.
    const { createServer } = require('node:http') as typeof import('node:http');
    this.http = createServer({
      headersTimeout: HEAD_MS,
      requestTimeout: REQUEST_MS,
      keepAliveTimeout: HEAD_MS,
      connectionsCheckingInterval: 1000,
      maxHeaderSize: 8192,
      requireHostHeader: false,
    });
    this.http.maxConnections = MAX_CONNECTIONS;
    this.http.on('request', (request, response) => void this.answer(request, response));
    this.http.on('checkExpectation', (_, response: ServerResponse) => {
      send(response, 417, 'Expect: expected no such header.');
    });
    // The page needs no upgrades or tunnels.
    for (const event of ['upgrade', 'connect'] as const) {
      this.http.on(event, (_, socket) => socket.destroy());
    }
    this.http.on('clientError', (_, socket) => socket.destroy());
  }

  /**
   * Listens. Rejects with DS_IO if the port is not free, and with `requireRuns` for a folder
   * without runs.
   */
  static async start(options: WatchServerOptions): Promise<WatchServer> {
    const server = new WatchServer(options);
    await server.listen();
    return server;
  }

  /** Address with the token, for a browser. Requests do not include the part after "#". */
  get url(): string {
    const { address, port, family } = this.http.address() as AddressInfo;
    const host = family === 'IPv6' ? `[${address}]` : address;
    return `http://${host}:${port}/#${this.token}`;
  }

  /** Closes all connections. */
  close(): Promise<void> {
    const closed = new Promise<void>((resolve) => this.http.close(() => resolve()));
    this.http.closeAllConnections();
    return closed;
  }

  private listen(): Promise<void> {
    const { port, host = '127.0.0.1' } = this.options;
    return new Promise((resolve, reject) => {
      const onError = (cause: Error): void => {
        const expected = 'an address and a port that are free';
        const hint = 'Give another port, or 0 for a free one.';
        const op = `watch ${host}:${port}`;
        reject(new DsError({ code: 'DS_IO', op, expected, got: cause.message, hint, cause }));
      };
      this.http.once('error', onError);
      this.http.listen({ host, port }, () => {
        // Later errors, for example too few file descriptors, affect one connection only.
        this.http.off('error', onError).on('error', () => {});
        resolve();
      });
    });
  }

  private async answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    response.on('error', () => {});
    request.on('error', () => {});
    try {
      const refusal = this.guard.findRefusal(request);
      if (refusal) {
        response.setHeader('connection', 'close');
        return send(response, refusal.status, refusal.message);
      }
      const [path = '', query = ''] = required(request.url).split(/\?(.*)/s);
      const page = this.pages.get(path);
      if (page) return send(response, 200, page.body, page.type);
      const route = this.api.routes.get(path);
      if (!route) return send(response, 404, 'Path: no such page.');
      if (!this.guard.hasToken(request)) {
        return send(response, 401, 'Token: expected the link that ds watch printed.');
      }
      if (this.pendingAnswers >= MAX_ANSWERS)
        return send(response, 503, 'Too many requests at once.');
      await this.compute(response, () => route(new URLSearchParams(query)));
    } catch (error) {
      if (error instanceof ParameterError) send(response, 400, error.message);
      else send(response, 500, 'The server failed.');
    }
  }

  private async compute(response: ServerResponse, body: () => unknown): Promise<void> {
    this.pendingAnswers++;
    try {
      send(response, 200, JSON.stringify(await body()), 'application/json');
    } finally {
      this.pendingAnswers--;
    }
  }
}

function send(
  response: ServerResponse,
  status: number,
  body: string | Buffer,
  type = 'text/plain; charset=utf-8',
): void {
  if (response.headersSent || response.destroyed) return;
  const length = Buffer.byteLength(body);
  response.writeHead(status, { ...PAGE_HEADERS, 'content-type': type, 'content-length': length });
  response.end(response.req.method === 'HEAD' ? undefined : body);
}

// The files of the page.

/** Scripts of lib/watch/page. */
const SCRIPTS = [
  'app.js',
  'api.js',
  'state.js',
  'dom.js',
  'charts.js',
  'chart.js',
  'panels.js',
  'export.js',
];

/**
 * Returns the files by route. uPlot sets styles through the DOM, which the page's policy allows.
 * Throws as node:fs does if the package is incomplete.
 */
function readPageFiles(): ReadonlyMap<string, PageFile> {
  const page = pageFolder('watch');
  const plots = dirname(createRequire(__filename).resolve('uplot'));
  return new Map([
    ['/', readPageFile(page, 'index.html')],
    ['/style.css', readPageFile(page, 'style.css')],
    ...SCRIPTS.map((name): [string, PageFile] => [`/${name}`, readPageFile(page, name)]),
    ['/uplot.js', readPageFile(plots, 'uPlot.iife.min.js')],
    ['/uplot.css', readPageFile(plots, 'uPlot.min.css')],
  ]);
}
