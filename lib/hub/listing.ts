// Commits and file lists of a model, through @huggingface/hub. The package is loaded on first use.
import { isObject } from '../runtime/is-object.js';
import { badAnswer } from './hub-error.js';
import { isCommit, printable, unsafePath } from './names.js';
import { type HubCall, send, textOf } from './request.js';
import { Retries, TransientFailure } from './retries.js';

/** A file of a commit. */
export interface ListedFile {
  readonly path: string;
  readonly bytes: number;
  /** Name of the blob in the cache: the SHA-256 of an LFS file, else git's SHA-1 of the blob. */
  readonly oid: string;
  readonly isLfs: boolean;
}

/** A listing of a commit. */
export interface Listing {
  readonly files: readonly ListedFile[];
  readonly folders: readonly string[];
}

/** The part of @huggingface/hub that is used; its own types need the DOM's. */
interface Client {
  modelInfo(params: object): Promise<{ sha?: unknown }>;
  listFiles(params: object): AsyncIterable<unknown>;
}

/** Bytes of one answer, and entries of a listing. */
const [ANSWER_BYTES, MAX_ENTRIES] = [16 * 2 ** 20, 50_000];
/** A call for names fails sooner than one for a file. */
const ATTEMPTS = 3;

/** Resolves with the commit of the call's revision. Throws DS_HUB. */
export async function commitOf(call: HubCall): Promise<string> {
  const { name, revision } = call.asked;
  const { hubUrl, fetch } = access(call);
  const found = await client().modelInfo({
    name,
    revision,
    hubUrl,
    fetch,
    additionalFields: ['sha'],
  });
  if (typeof found.sha === 'string' && isCommit(found.sha)) return found.sha;
  throw badAnswer(name, 'a commit of 40 digits', printable(found.sha));
}

/**
 * Resolves with the content of `folder` in a commit ("" for the top), and all below it if
 * `recursive`. Throws DS_HUB for a hostile or an endless listing.
 */
export async function filesOf(
  call: HubCall,
  commit: string,
  { folder = '', recursive = false } = {},
): Promise<Listing> {
  const { name } = call.asked;
  const files: ListedFile[] = [];
  const folders: string[] = [];
  let entries = 0;
  const list = client().listFiles({
    ...access(call),
    repo: { type: 'model', name },
    revision: commit,
    path: folder || undefined,
    recursive,
  });
  for await (const entry of list) {
    if (++entries > MAX_ENTRIES) {
      throw badAnswer(name, `at most ${MAX_ENTRIES} files`, 'more files');
    }
    if (!isObject(entry)) throw badAnswer(name, 'a list of files', printable(entry));
    const path = pathOf(name, entry);
    if (entry.type === 'file') files.push(fileOf(name, path, entry));
    else folders.push(path);
  }
  return { files, folders };
}

function pathOf(name: string, { path }: Record<string, unknown>): string {
  const reason = unsafePath(path);
  if (reason === null) return path as string;
  throw badAnswer(name, 'safe names of files', `${printable(path)}: ${reason}`);
}

function fileOf(
  name: string,
  path: string,
  { size, oid, lfs }: Record<string, unknown>,
): ListedFile {
  const isLfs = isObject(lfs);
  const hash = isLfs ? lfs.oid : oid;
  const bytes = isLfs ? lfs.size : size;
  const isHash =
    typeof hash === 'string' && (isLfs ? /^[0-9a-f]{64}$/ : /^[0-9a-f]{40}$/).test(hash);
  if (!isHash) throw badAnswer(name, `a hash of ${printable(path)}`, printable(hash));
  if (typeof bytes !== 'number' || !Number.isSafeInteger(bytes) || bytes < 0) {
    throw badAnswer(name, `a size of ${printable(path)}`, printable(bytes));
  }
  return { path, bytes, oid: hash, isLfs };
}

const client = (): Client => require('@huggingface/hub') as Client;

/**
 * The client gets no token: `fetch` adds it for the hub's own origin only. A "next" link of a
 * listing could name another host.
 */
function access(call: HubCall): { hubUrl: string; fetch: typeof fetch } {
  const { endpoint } = call.settings;
  const { origin } = new URL(endpoint);
  return {
    hubUrl: endpoint,
    fetch: async (input) => {
      const url = new URL(String(input));
      if (url.origin !== origin) {
        throw badAnswer(call.asked.name, `the next page on ${origin}`, `one on ${url.host}`);
      }
      return retry(call, async () => {
        const answer = await send(call, url, { accept: 'application/json' });
        const text = await textOf(call, answer, ANSWER_BYTES);
        requireJson(call, url, text);
        const link = answer.response.headers.get('link');
        return new Response(text, { headers: link === null ? {} : { link } });
      });
    },
  };
}

/** The client iterates a listing without a check. */
function requireJson({ asked: { name } }: HubCall, { pathname }: URL, text: string): void {
  const isListing = pathname.includes('/tree/');
  try {
    const value: unknown = JSON.parse(text);
    if (isListing ? Array.isArray(value) : isObject(value)) return;
  } catch {
    // The text below is the message.
  }
  const expected = isListing ? 'a list of files in JSON' : 'an object in JSON';
  throw badAnswer(name, expected, printable(text.slice(0, 200)));
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
