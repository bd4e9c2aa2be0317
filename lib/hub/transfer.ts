// Downloads one file of a commit into the cache: fetches ranges in parallel, resumes, verifies and
// renames.
import { createHash, randomBytes } from 'node:crypto';
import { rm, stat } from 'node:fs/promises';
import { dirname } from 'node:path';

import { orDsError } from '../checkpoint/file-error.js';
import { makeFolder } from '../checkpoint/make-folder.js';
import { DsError } from '../errors.js';
import { whenAborted } from '../runtime/when-aborted.js';
import { takeLock } from './blob-lock.js';
import type { CachedModel } from './cache.js';
import type { Slots } from './concurrency-limit.js';
import { badAnswerError, unreachableError } from './hub-error.js';
import type { ListedFile } from './listing.js';
import { PartialFile, type Segment, toJournalPath } from './partial-file.js';
import { type Answer, type HubCall, send } from './request.js';
import { Retries, TransientFailure } from './retries.js';

/** State of a pull that all its files share. */
export interface Transfers {
  readonly call: HubCall;
  readonly model: CachedModel;
  readonly commit: string;
  /** Limits the number of connections. */
  readonly slots: Slots;
  /** Called with the number of downloaded bytes; negative if they must be downloaded again. */
  onDownloaded(bytes: number): void;
  /** Called with the number of bytes that an earlier or another process has downloaded. */
  onCached(bytes: number): void;
  /** Called if another process downloads the file. */
  onWait(file: ListedFile): void;
}

/** Thrown to fetch a file from its start. */
class RestartRequest extends Error {
  /** `isUnranged`: the server does not support ranges. */
  constructor(readonly isUnranged: boolean) {
    super('restart');
  }
}

/**
 * Maximum number of attempts. A wrong checksum may come from bytes of an earlier process, so the
 * second attempt downloads the whole file.
 */
const ATTEMPTS = 2;

/** Returns whether the cache has the blob of a file. */
export async function hasBlob(model: CachedModel, { oid, bytes }: ListedFile): Promise<boolean> {
  const stats = await stat(model.blobPath(oid)).catch(() => null);
  return stats?.isFile() === true && stats.size === bytes;
}

/**
 * Downloads the blob, unless it is in the cache. Throws DS_HUB if the hub fails or the checksum is
 * wrong, DS_IO if the cache cannot be written.
 */
export async function fetchBlob(transfers: Transfers, file: ListedFile): Promise<void> {
  const { call, model } = transfers;
  const blob = model.blobPath(file.oid);
  if (await hasBlob(model, file)) {
    // A process killed after its rename leaves its journal.
    await rm(toJournalPath(toPartialPath(blob)), { force: true });
    return transfers.onCached(file.bytes);
  }
  await orDsError(blob, async () => {
    const release = await takeLock(model.lockPath(file.oid), {
      signal: call.signal,
      progress: async () => {
        const found = await stat(toPartialPath(blob)).catch(() => null);
        return found ? found.mtimeMs : 0;
      },
      onWait: () => transfers.onWait(file),
    });
    try {
      if (await hasBlob(model, file)) return transfers.onCached(file.bytes);
      await makeFolder(dirname(blob));
      // Without locks, each process writes its own file, and the last rename counts.
      const path = release
        ? toPartialPath(blob)
        : `${blob}.${randomBytes(6).toString('hex')}.incomplete`;
      await fetchChecked(transfers, file, path, release ? `${blob}.incomplete` : '');
    } finally {
      await release?.();
    }
  });
}

export const toPartialPath = (blob: string): string => `${blob}.parts.incomplete`;

async function fetchChecked(
  transfers: Transfers,
  file: ListedFile,
  path: string,
  pythonPath: string,
): Promise<void> {
  const { call, model } = transfers;
  const { segmentBytes } = call.settings;
  let got = '';
  for (let attempt = 0; attempt < ATTEMPTS; ++attempt) {
    const partial = await PartialFile.open(path, file.bytes, { segmentBytes, pythonPath });
    try {
      transfers.onCached(partial.done);
      await fetchMissing(transfers, file, partial);
      got = await computeChecksum(partial, file);
      if (got === file.oid) return await partial.complete(model.blobPath(file.oid));
      transfers.onDownloaded(-file.bytes);
      await partial.discard();
    } finally {
      await partial.close();
    }
  }
  throw new DsError({
    code: 'DS_HUB',
    op: `${call.model.name}/${file.path}`,
    expected: `the ${file.isLfs ? 'SHA-256' : 'git SHA-1'} ${file.oid}`,
    got: `${got}, twice`,
    hint: 'The bytes were deleted. A proxy or a mirror may change files: check HF_ENDPOINT.',
  });
}

async function computeChecksum(
  partial: PartialFile,
  { isLfs, bytes }: ListedFile,
): Promise<string> {
  const hash = isLfs ? createHash('sha256') : createHash('sha1').update(`blob ${bytes}\0`);
  for await (const chunk of partial.readContents()) hash.update(chunk);
  return hash.digest('hex');
}

/** Fetches the missing bytes. A failure of one range stops the other ranges. */
async function fetchMissing(
  transfers: Transfers,
  file: ListedFile,
  partial: PartialFile,
): Promise<void> {
  for (let isRanged = true; ; ) {
    const controller = new AbortController();
    const { call } = transfers;
    const removeListener = whenAborted(call.signal, () => controller.abort(call.signal.reason));
    const fileCall = { ...call, signal: controller.signal };
    const source = new FileUrl(fileCall, transfers.commit, file);
    const ranges = new RangeFetcher(
      { ...transfers, call: fileCall },
      file,
      partial,
      source,
      isRanged,
    );
    let failure: unknown = null;
    await Promise.all(
      partial.segments.map((segment) =>
        ranges.fetchSegment(segment).catch((error: unknown) => {
          failure ??= error;
          controller.abort(error);
        }),
      ),
    );
    removeListener();
    if (failure === null) return;
    call.signal.throwIfAborted();
    if (!(failure instanceof RestartRequest)) throw failure;
    if (failure.isUnranged && !isRanged)
      throw badAnswerError(file.path, 'the file', 'an answer without the file');
    isRanged &&= !failure.isUnranged;
    transfers.onDownloaded(-partial.done);
    await partial.restart(file.bytes, { whole: failure.isUnranged });
  }
}

/** Fetches the ranges of one file. */
class RangeFetcher {
  constructor(
    private readonly transfers: Transfers,
    private readonly file: ListedFile,
    private readonly partial: PartialFile,
    private readonly source: FileUrl,
    private readonly isRanged: boolean,
  ) {}

  /** Fetches the missing bytes of a segment; reconnects after transient failures. */
  async fetchSegment(segment: Segment): Promise<void> {
    const { call, slots, onDownloaded } = this.transfers;
    const retries = new Retries(call.settings.backoffMs, call.signal);
    while (segment.done < segment.to - segment.from) {
      const before = segment.done;
      try {
        await slots.run(call.signal, () => this.fetchOnce(segment));
      } catch (error) {
        if (!this.isRanged) {
          onDownloaded(-segment.done);
          segment.done = 0;
        } else if (segment.done > before) retries.noteProgress();
        await this.partial.record(segment);
        await retries.pause(error);
      }
    }
    await this.partial.record(segment);
  }

  private async fetchOnce(segment: Segment): Promise<void> {
    const { file, partial } = this;
    const from = segment.from + segment.done;
    const isWhole = from === 0 && segment.to === file.bytes;
    const { etag } = partial;
    const answer = await this.source.get({
      ...(!isWhole && { range: `bytes=${from}-${segment.to - 1}` }),
      ...(!isWhole && etag !== null && { 'if-range': etag }),
    });
    try {
      await this.requireRange(answer.response, from, segment, isWhole);
      await this.receive(answer, segment);
    } finally {
      answer.stop();
    }
    if (segment.done === segment.to - segment.from) return;
    const { settings, model } = this.transfers.call;
    const got = `an end after ${segment.from + segment.done} of ${file.bytes} bytes of ${file.path}`;
    throw new TransientFailure(unreachableError(model.name, settings, got));
  }

  private async requireRange(
    { status, headers }: Response,
    from: number,
    { to }: Segment,
    isWhole: boolean,
  ): Promise<void> {
    const { file, partial } = this;
    const { name } = this.transfers.call.model;
    if (status === 416) throw new RestartRequest(false);
    // With If-Range, the server has another version of the file. Without it, the server does not
    // support ranges.
    if (status === 200 && !isWhole) throw new RestartRequest(partial.etag === null);
    if (status === 206) {
      const range = headers.get('content-range') ?? '';
      const [, first, last, all] = /^bytes (\d+)-(\d+)\/(\d+|\*)$/.exec(range) ?? [];
      const isExpected = Number(first) === from && Number(last) < to;
      if (!isExpected || (all !== '*' && Number(all) !== file.bytes)) {
        const expected = `bytes ${from}-${to - 1}/${file.bytes} of ${file.path}`;
        throw badAnswerError(name, expected, range.slice(0, 80) || 'no Content-Range');
      }
    } else {
      const length = headers.get('content-length');
      if (length !== null && Number(length) !== file.bytes) {
        throw badAnswerError(name, `${file.bytes} bytes of ${file.path}`, length.slice(0, 40));
      }
    }
    const etag = headers.get('etag');
    const isStrong = etag !== null && /^"[\x21\x23-\x7e]{1,200}"$/.test(etag);
    if (partial.etag === null && isStrong) await partial.setEtag(etag);
  }

  private async receive(answer: Answer, segment: Segment): Promise<void> {
    const { onDownloaded, call } = this.transfers;
    for await (const chunk of answer.readChunks()) {
      call.signal.throwIfAborted();
      const room = segment.to - segment.from - segment.done;
      if (chunk.length > room) {
        const expected = `${this.file.bytes} bytes of ${this.file.path}`;
        throw badAnswerError(call.model.name, expected, 'more bytes');
      }
      await this.partial.append(segment, chunk);
      onDownloaded(chunk.length);
    }
  }
}

/**
 * The URL of a file. Redirects lead to a signed URL of another host, which is reused until it
 * expires.
 */
class FileUrl {
  private readonly url: string;
  private redirected: URL | null = null;

  constructor(
    private readonly call: HubCall,
    commit: string,
    { path }: ListedFile,
  ) {
    const { endpoint } = call.settings;
    const file = path.split('/').map(encodeURIComponent).join('/');
    this.url = `${endpoint}/${call.model.name}/resolve/${commit}/${file}`;
  }

  async get(headers: Readonly<Record<string, string>>): Promise<Answer> {
    const { redirected } = this;
    if (redirected) {
      try {
        return await send(this.call, redirected, headers);
      } catch (error) {
        if (!(error instanceof DsError)) throw error;
        this.redirected = null; // The signature of the URL may have expired.
      }
    }
    const answer = await send(this.call, this.url, headers);
    const isOther = answer.url.origin !== new URL(this.call.settings.endpoint).origin;
    if (isOther) this.redirected = answer.url;
    return answer;
  }
}
