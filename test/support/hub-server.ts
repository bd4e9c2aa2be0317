// A server with the interface of the Hugging Face hub on 127.0.0.1, and a second one as its CDN.
// Faults are injected by request.
import { createHash, randomBytes } from 'node:crypto';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';

/** A request that the server has received. */
export interface Received {
  host: 'hub' | 'cdn';
  path: string;
  range: string | null;
  ifRange: string | null;
  authorization: string | null;
  /** The status of the answer; 0 while it is under way. */
  status: number;
}

/** A repository of one commit. */
export interface Repository {
  commit: string;
  /** Branches and tags of the commit. "main" is always one. */
  revisions: readonly string[];
  files: ReadonlyMap<string, Buffer>;
  /** "gated": only `reader` may read it. "private": others get 404, or 401 without a token. */
  access: 'public' | 'gated' | 'private';
}

/** Takes over an answer: true if it has handled the request. */
export type Fault = (
  request: { host: 'hub' | 'cdn'; path: string; count: number },
  response: ServerResponse,
  raw: IncomingMessage,
) => boolean | Promise<boolean>;

const API = /^\/api\/models\/([^?]+?)\/(revision|tree)\/([^/?]+)(?:\/([^?]*))?(?:\?|$)/;
const FILE = /^\/((?:[^/]+\/)?[^/]+)\/resolve\/([0-9a-f]{40})\/(.+)$/;
/** Larger files are LFS files, which the CDN serves. */
export const LFS_BYTES = 10_000;

export const sha256 = (bytes: Buffer): string => createHash('sha256').update(bytes).digest('hex');
export const gitSha1 = (bytes: Buffer): string =>
  createHash('sha1').update(`blob ${bytes.length}\0`).update(bytes).digest('hex');

export class HubServer {
  readonly repositories = new Map<string, Repository>();
  readonly received: Received[] = [];
  /** The account that may read gated and private models. */
  readonly reader = 'hf_reader';
  fault: Fault | null = null;
  /** Changes a listing before it is sent. */
  edit: ((entries: Record<string, unknown>[]) => unknown) | null = null;
  /** Entries of a page of a listing. */
  page = 1000;
  sendsRanges = true;
  /** Bytes between two pauses of 1 ms; 0: all at once. */
  chunk = 0;
  private readonly hub: Server;
  private readonly cdn: Server;

  private constructor() {
    this.hub = createServer((request, response) => this.answer('hub', request, response));
    this.cdn = createServer((request, response) => this.answer('cdn', request, response));
  }

  static async start(): Promise<HubServer> {
    const server = new HubServer();
    for (const one of [server.hub, server.cdn]) {
      await new Promise<void>((resolve) => one.listen(0, '127.0.0.1', resolve));
    }
    [server.url, server.cdnUrl] = [urlOf(server.hub), urlOf(server.cdn)];
    return server;
  }

  /** URLs of the hub and its CDN. */
  url = '';
  cdnUrl = '';

  /** Adds a repository; its commit is random. */
  add(
    name: string,
    files: Readonly<Record<string, Buffer | string>>,
    { access = 'public' as Repository['access'], revisions = [] as readonly string[] } = {},
  ): Repository {
    const entries = Object.entries(files).map(([path, one]) => [path, Buffer.from(one)] as const);
    const commit = randomBytes(20).toString('hex');
    const repository = { commit, revisions, files: new Map(entries), access };
    this.repositories.set(name, repository);
    return repository;
  }

  /** Requests of files, at the host that sends their bytes. */
  fileRequests(ending = ''): Received[] {
    return this.received.filter(
      ({ path, status }) =>
        /\/(resolve|cdn)\//.test(path) && status !== 302 && path.split('?')[0]?.endsWith(ending),
    );
  }

  async stop(): Promise<void> {
    for (const server of [this.hub, this.cdn]) {
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    }
  }

  private async answer(
    host: 'hub' | 'cdn',
    request: IncomingMessage,
    response: ServerResponse,
  ): Promise<void> {
    const path = decodeURI(request.url ?? '');
    const header = (name: string): string | null => (request.headers[name] as string) ?? null;
    const received: Received = {
      host,
      path,
      range: header('range'),
      ifRange: header('if-range'),
      authorization: header('authorization'),
      status: 0,
    };
    this.received.push(received);
    response.on('finish', () => {
      received.status = response.statusCode;
    });
    response.on('error', () => {});
    const count = this.received.filter(
      (received) => received.host === host && received.path === path,
    ).length;
    if (await this.fault?.({ host, path, count }, response, request)) return;
    if (host === 'cdn') return this.sendFile(path.replace(/^\/cdn\//, ''), request, response);
    const api = API.exec(path);
    const file = FILE.exec(path);
    const name = api?.[1] ?? file?.[1] ?? '';
    const repository = this.repositories.get(name);
    const refusal = this.refusalOf(repository, received.authorization, file !== null);
    if (refusal || !repository) return refuse(response, refusal ?? [404, 'RepoNotFound', '']);
    if (file) return this.sendOrRedirect(repository, file[3] as string, request, response);
    const [, , kind, revision = '', folder = ''] = api ?? [];
    const known = ['main', 'HEAD', repository.commit, ...repository.revisions];
    if (!known.includes(decodeURIComponent(revision))) {
      return refuse(response, [404, 'RevisionNotFound', `Invalid rev id: ${revision}`]);
    }
    if (kind === 'tree') return this.sendTree(repository, { path, folder }, response);
    const { access, commit } = repository;
    sendJson(response, { _id: '1', id: name, sha: commit, gated: access === 'gated' && 'auto' });
  }

  private refusalOf(
    repository: Repository | undefined,
    authorization: string | null,
    isFile: boolean,
  ): [number, string, string] | null {
    const isReader = authorization === `Bearer ${this.reader}`;
    if (!repository || (repository.access === 'private' && !isReader)) {
      const status = authorization ? 404 : 401;
      return [status, 'RepoNotFound', 'Repository not found'];
    }
    if (repository.access !== 'gated' || isReader || !isFile) return null;
    const text = 'Access to this model is restricted.';
    return [authorization ? 403 : 401, 'GatedRepo', text];
  }

  private sendTree(
    { files }: Repository,
    { path, folder }: { path: string; folder: string },
    response: ServerResponse,
  ): void {
    const { searchParams } = new URL(path, this.url);
    const prefix = folder && `${folder}/`;
    const isRecursive = searchParams.get('recursive') === 'true';
    const below = [...files].filter(([name]) => name.startsWith(prefix));
    const folders = new Set<string>();
    const entries: Record<string, unknown>[] = [];
    for (const [name, bytes] of below) {
      const rest = name.slice(prefix.length);
      const slash = rest.indexOf('/');
      if (slash >= 0) folders.add(prefix + rest.slice(0, slash));
      if (slash >= 0 && !isRecursive) continue;
      const lfs = { oid: sha256(bytes), size: bytes.length, pointerSize: 130 };
      const isLfs = bytes.length >= LFS_BYTES;
      entries.push({
        type: 'file',
        path: name,
        size: bytes.length,
        oid: gitSha1(bytes),
        ...(isLfs && { lfs }),
      });
    }
    for (const one of folders) entries.push({ type: 'directory', path: one, size: 0, oid: '0' });
    const cursor = Number(searchParams.get('cursor') ?? 0);
    const rest = entries.slice(cursor, cursor + this.page);
    if (cursor + this.page < entries.length) {
      const next = new URL(path, this.url);
      next.searchParams.set('cursor', String(cursor + this.page));
      response.setHeader('Link', `<${next.href}>; rel="next"`);
    }
    sendJson(response, this.edit ? this.edit(rest) : rest);
  }

  private sendOrRedirect(
    { files }: Repository,
    path: string,
    request: IncomingMessage,
    response: ServerResponse,
  ): void {
    const bytes = files.get(path);
    if (!bytes) refuse(response, [404, 'EntryNotFound', 'Entry not found']);
    else if (bytes.length < LFS_BYTES) this.sendBytes(bytes, gitSha1(bytes), request, response);
    else {
      const url = `${this.cdnUrl}/cdn/${sha256(bytes)}/${path}?signature=1`;
      response.writeHead(302, { Location: url, 'X-Linked-ETag': `"${sha256(bytes)}"` }).end();
    }
  }

  private sendFile(path: string, request: IncomingMessage, response: ServerResponse): void {
    const hash = path.split('/')[0] as string;
    const all = [...this.repositories.values()].flatMap(({ files }) => [...files.values()]);
    const bytes = all.find((bytes) => sha256(bytes) === hash);
    if (bytes) this.sendBytes(bytes, hash, request, response);
    else refuse(response, [404, 'EntryNotFound', '']);
  }

  private sendBytes(
    bytes: Buffer,
    etag: string,
    { headers }: IncomingMessage,
    response: ServerResponse,
  ): void {
    response.setHeader('ETag', `"${etag}"`);
    const expected = headers['if-range'] === undefined || headers['if-range'] === `"${etag}"`;
    const [, from, to] = /^bytes=(\d+)-(\d*)$/.exec(headers.range ?? '') ?? [];
    if (from === undefined || !expected || !this.sendsRanges) {
      response.writeHead(200, { 'Content-Length': bytes.length });
      this.write(bytes, response);
      return;
    }
    const first = Number(from);
    if (first >= bytes.length) {
      response.writeHead(416, { 'Content-Range': `bytes */${bytes.length}` }).end();
      return;
    }
    const last = to ? Math.min(Number(to), bytes.length - 1) : bytes.length - 1;
    response.writeHead(206, {
      'Content-Range': `bytes ${first}-${last}/${bytes.length}`,
      'Content-Length': last - first + 1,
    });
    this.write(bytes.subarray(first, last + 1), response);
  }

  private write(bytes: Buffer, response: ServerResponse): void {
    if (this.chunk === 0 || bytes.length <= this.chunk) return void response.end(bytes);
    response.write(bytes.subarray(0, this.chunk));
    setTimeout(() => {
      if (!response.destroyed) this.write(bytes.subarray(this.chunk), response);
    }, 1);
  }
}

const urlOf = (server: Server): string =>
  `http://127.0.0.1:${(server.address() as AddressInfo).port}`;

function sendJson(response: ServerResponse, value: unknown): void {
  response.setHeader('Content-Type', 'application/json; charset=utf-8');
  response.end(JSON.stringify(value));
}

export function refuse(
  response: ServerResponse,
  [status, code, text]: [number, string, string],
): void {
  response.writeHead(status, {
    ...(code && { 'X-Error-Code': code }),
    ...(text && { 'X-Error-Message': text }),
    'Content-Type': 'application/json',
  });
  response.end(JSON.stringify({ error: text }));
}
