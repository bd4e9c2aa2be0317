// Fetches commits and file lists of a model through @huggingface/hub, which is loaded on first use.
import { isObject } from '../runtime/is-object.js';
import { badAnswerError } from './hub-error.js';
import { findPathFault, isCommit, toPrintable } from './names.js';
import { type HubCall, readText, send } from './request.js';
import { Retries, TransientFailure } from './retries.js';

/** A file of a commit. */
export interface ListedFile {
  readonly path: string;
  readonly bytes: number;
  /**
   * Name of the blob in the cache: the SHA-256 of an LFS file, otherwise git's SHA-1 of the blob.
   */
  readonly oid: string;
  readonly isLfs: boolean;
}

/** Files and folders of a commit. */
interface Listing {
  readonly files: readonly ListedFile[];
  readonly folders: readonly string[];
}

/**
 * The functions of @huggingface/hub that this file calls. The package's own types need the DOM
 * library.
 */
interface Client {
  modelInfo(params: object): Promise<{ sha?: unknown }>;
  listFiles(params: object): AsyncIterable<unknown>;
}

/** Maximum number of bytes of an answer, and of entries of a listing. */
const [ANSWER_BYTES, MAX_ENTRIES] = [16 * 2 ** 20, 50_000];
/** Maximum number of attempts for a listing, fewer than for a file. */
const ATTEMPTS = 3;

/**
 * Resolves with the commit of the requested revision. Throws DS_HUB if the hub does not answer, or
 * refuses access.
 */
export async function fetchCommit(call: HubCall): Promise<string> {
  const { name, revision } = call.model;
  const { hubUrl, fetch } = createAccess(call);
  const info = await loadClient().modelInfo({
    name,
    revision,
    hubUrl,
    fetch,
    additionalFields: ['sha'],
  });
  if (typeof info.sha === 'string' && isCommit(info.sha)) return info.sha;
  throw badAnswerError(name, 'a commit of 40 digits', toPrintable(info.sha));
}

/**
 * Resolves with the content of `folder` in a commit ("" for the top), including subfolders if
 * `recursive`. Throws DS_HUB for an unsafe or too long listing.
 */
export async function listFiles(
  call: HubCall,
  commit: string,
  { folder = '', recursive = false } = {},
): Promise<Listing> {
  const { name } = call.model;
  const files: ListedFile[] = [];
  const folders: string[] = [];
  let entries = 0;
  const list = loadClient().listFiles({
    ...createAccess(call),
    repo: { type: 'model', name },
    revision: commit,
    path: folder || undefined,
    recursive,
  });
  for await (const entry of list) {
    if (++entries > MAX_ENTRIES) {
      throw badAnswerError(name, `at most ${MAX_ENTRIES} files`, 'more files');
    }
    if (!isObject(entry)) throw badAnswerError(name, 'a list of files', toPrintable(entry));
    const path = requirePath(name, entry);
    if (entry.type === 'file') files.push(parseFile(name, path, entry));
    else folders.push(path);
  }
  return { files, folders };
}

function requirePath(name: string, { path }: Record<string, unknown>): string {
  const reason = findPathFault(path);
  if (reason === null) return path as string;
  throw badAnswerError(name, 'safe names of files', `${toPrintable(path)}: ${reason}`);
}

function parseFile(
  name: string,
  path: string,
  { size, oid, lfs }: Record<string, unknown>,
): ListedFile {
  const isLfs = isObject(lfs);
  const hash = isLfs ? lfs.oid : oid;
  const bytes = isLfs ? lfs.size : size;
  const isHash =
    typeof hash === 'string' && (isLfs ? /^[0-9a-f]{64}$/ : /^[0-9a-f]{40}$/).test(hash);
  if (!isHash) throw badAnswerError(name, `a hash of ${toPrintable(path)}`, toPrintable(hash));
  if (typeof bytes !== 'number' || !Number.isSafeInteger(bytes) || bytes < 0) {
    throw badAnswerError(name, `a size of ${toPrintable(path)}`, toPrintable(bytes));
  }
  return { path, bytes, oid: hash, isLfs };
}

const loadClient = (): Client => require('@huggingface/hub') as Client;

/**
 * Returns the client's options. The client gets no token: `fetch` adds it for the hub's own origin
 * only, because a "next" link of a listing could name another host.
 */
function createAccess(call: HubCall): { hubUrl: string; fetch: typeof fetch } {
  const { endpoint } = call.settings;
  const { origin } = new URL(endpoint);
  return {
    hubUrl: endpoint,
    fetch: async (input) => {
      const url = new URL(String(input));
      if (url.origin !== origin) {
        throw badAnswerError(
          call.model.name,
          `the next page on ${origin}`,
          `a page on ${url.host}`,
        );
      }
      return retry(call, async () => {
        const answer = await send(call, url, { accept: 'application/json' });
        const text = await readText(call, answer, ANSWER_BYTES);
        requireJson(call, url, text);
        const link = answer.response.headers.get('link');
        return new Response(text, { headers: link === null ? {} : { link } });
      });
    },
  };
}

/** Throws DS_HUB unless an answer is JSON of the expected form: the client does not check it. */
function requireJson({ model: { name } }: HubCall, { pathname }: URL, text: string): void {
  const isListing = pathname.includes('/tree/');
  try {
    const value: unknown = JSON.parse(text);
    if (isListing ? Array.isArray(value) : isObject(value)) return;
  } catch {
    // Not JSON: the error below shows the text.
  }
  const expected = isListing ? 'a list of files in JSON' : 'an object in JSON';
  throw badAnswerError(name, expected, toPrintable(text.slice(0, 200)));
}

async function retry<T>(call: HubCall, body: () => Promise<T>): Promise<T> {
  const retries = new Retries(call.settings.backoffMs, call.signal, ATTEMPTS);
  for (;;) {
    try {
      return await body();
    } catch (error) {
      if (!(error instanceof TransientFailure)) throw error;
      await retries.pause(error);
    }
  }
}
