// Fetches one file of a commit into the cache: ranges in parallel, resumed, checked, renamed.
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
import { badAnswer, unreachable } from './hub-error.js';
import type { ListedFile } from './listing.js';
import { journalPath, PartialFile, type Segment } from './partial-file.js';
import { type Answer, type HubCall, send } from './request.js';
import { Retries, TransientFailure } from './retries.js';

/** The state of a pull that its files share. */
export interface Transfers {
  readonly call: HubCall;
  readonly model: CachedModel;
  readonly commit: string;
  /** Connections. */
  readonly slots: Slots;
  /** Reports bytes that have arrived; negative if they are fetched again. */
  arrived(bytes: number): void;
  /** Reports bytes that an earlier process, or another one, has fetched. */
  found(bytes: number): void;
  /** Reports that another process downloads the file. */
  waits(file: ListedFile): void;
}

/** The file must be fetched from its start. */
class Restart extends Error {
  /** `whole`: the server sends no ranges. */
  constructor(readonly whole: boolean) {
    super('restart');
  }
}

/** A wrong checksum may come from bytes of an earlier process: the second attempt starts over. */
const ATTEMPTS = 2;

/** Returns true if the blob of a file is in the cache. */
export async function hasBlob(model: CachedModel, { oid, bytes }: ListedFile): Promise<boolean> {
  const found = await stat(model.blob(oid)).catch(() => null);
  return found?.isFile() === true && found.size === bytes;
}

/** Resolves when the blob is in the cache. Throws DS_HUB, DS_IO. */
export async function fetchBlob(transfers: Transfers, file: ListedFile): Promise<void> {
  const { call, model } = transfers;
  const blob = model.blob(file.oid);
  if (await hasBlob(model, file)) {
    // A process that was killed after its rename has left the journal.
    await rm(journalPath(partialPath(blob)), { force: true });
    return transfers.found(file.bytes);
  }
  await orDsError(blob, async () => {
    const release = await takeLock(model.lock(file.oid), {
      signal: call.signal,
      progress: async () => {
        const found = await stat(partialPath(blob)).catch(() => null);
        return found ? found.mtimeMs : 0;
      },
      begun: () => transfers.waits(file),
    });
    try {
      if (await hasBlob(model, file)) return transfers.found(file.bytes);
      await makeFolder(dirname(blob));
      // Without locks, each process has a file of its own, and the last rename wins.
      const path = release
        ? partialPath(blob)
        : `${blob}.${randomBytes(6).toString('hex')}.incomplete`;
      await fetchChecked(transfers, file, path, release ? `${blob}.incomplete` : '');
    } finally {
      await release?.();
    }
  });
}

export const partialPath = (blob: string): string => `${blob}.parts.incomplete`;

async function fetchChecked(
  transfers: Transfers,
  file: ListedFile,
  path: string,
  foreign: string,
): Promise<void> {
  const { call, model } = transfers;
  const { segmentBytes } = call.settings;
  let got = '';
  for (let attempt = 0; attempt < ATTEMPTS; ++attempt) {
    const partial = await PartialFile.open(path, file.bytes, { segmentBytes, foreign });
    try {
      transfers.found(partial.done);
      await fetchAll(transfers, file, partial);
      got = await checksum(partial, file);
      if (got === file.oid) return await partial.complete(model.blob(file.oid));
      transfers.arrived(-file.bytes);
      await partial.discard();
    } finally {
      await partial.close();
    }
  }
  throw new DsError({
    code: 'DS_HUB',
    op: `${call.asked.name}/${file.path}`,
    expected: `the ${file.isLfs ? 'SHA-256' : 'git SHA-1'} ${file.oid}`,
    got: `${got}, twice`,
    hint: 'The bytes were deleted. A proxy or a mirror may change files: check HF_ENDPOINT.',
  });
}

async function checksum(partial: PartialFile, { isLfs, bytes }: ListedFile): Promise<string> {
  const hash = isLfs ? createHash('sha256') : createHash('sha1').update(`blob ${bytes}\0`);
  for await (const chunk of partial.contents()) hash.update(chunk);
  return hash.digest('hex');
}

/** Fetches the missing bytes. A failure of one range ends the others. */
async function fetchAll(
  transfers: Transfers,
  file: ListedFile,
  partial: PartialFile,
): Promise<void> {
  for (let isRanged = true; ; ) {
    const controller = new AbortController();
    const { call } = transfers;
    const forget = whenAborted(call.signal, () => controller.abort(call.signal.reason));
    const own = { ...call, signal: controller.signal };
    const source = new Source(own, transfers.commit, file);
    const range = new Ranges({ ...transfers, call: own }, file, partial, source, isRanged);
    let failure: unknown = null;
    await Promise.all(
      partial.segments.map((segment) =>
        range.fetch(segment).catch((error: unknown) => {
          failure ??= error;
          controller.abort(error);
        }),
      ),
    );
    forget();
    if (failure === null) return;
    call.signal.throwIfAborted();
    if (!(failure instanceof Restart)) throw failure;
    if (failure.whole && !isRanged)
      throw badAnswer(file.path, 'the file', 'an answer without the file');
    isRanged &&= !failure.whole;
    transfers.arrived(-partial.done);
    await partial.restart(file.bytes, failure);
  }
}

/** The ranges of one file. */
class Ranges {
  constructor(
    private readonly transfers: Transfers,
    private readonly file: ListedFile,
    private readonly partial: PartialFile,
    private readonly source: Source,
    private readonly isRanged: boolean,
  ) {}

  /** Fetches the rest of a segment, as often as connections break. */
  async fetch(segment: Segment): Promise<void> {
    const { call, slots, arrived } = this.transfers;
    const retries = new Retries(call.settings.backoffMs, call.signal);
    while (segment.done < segment.to - segment.from) {
      const before = segment.done;
      try {
        await slots.use(call.signal, () => this.attempt(segment));
      } catch (error) {
        if (!this.isRanged) {
          arrived(-segment.done);
          segment.done = 0;
        } else if (segment.done > before) retries.noteProgress();
        await this.partial.record(segment);
        await retries.pause(error);
      }
    }
    await this.partial.record(segment);
  }

  private async attempt(segment: Segment): Promise<void> {
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
    const { settings, asked } = this.transfers.call;
    const got = `an end after ${segment.from + segment.done} of ${file.bytes} bytes of ${file.path}`;
    throw new TransientFailure(unreachable(asked.name, settings, got));
  }

  private async requireRange(
    { status, headers }: Response,
    from: number,
    { to }: Segment,
    isWhole: boolean,
  ): Promise<void> {
    const { file, partial } = this;
    const { name } = this.transfers.call.asked;
    if (status === 416) throw new Restart(false);
    // With If-Range the server has another version of the file. Without it, it sends no ranges.
    if (status === 200 && !isWhole) throw new Restart(partial.etag === null);
    if (status === 206) {
      const range = headers.get('content-range') ?? '';
      const [, first, last, all] = /^bytes (\d+)-(\d+)\/(\d+|\*)$/.exec(range) ?? [];
      const isRight = Number(first) === from && Number(last) < to;
      if (!isRight || (all !== '*' && Number(all) !== file.bytes)) {
        const expected = `bytes ${from}-${to - 1}/${file.bytes} of ${file.path}`;
        throw badAnswer(name, expected, range.slice(0, 80) || 'no Content-Range');
      }
    } else {
      const length = headers.get('content-length');
      if (length !== null && Number(length) !== file.bytes) {
        throw badAnswer(name, `${file.bytes} bytes of ${file.path}`, length.slice(0, 40));
      }
    }
    const etag = headers.get('etag');
    const isStrong = etag !== null && /^"[\x21\x23-\x7e]{1,200}"$/.test(etag);
    if (partial.etag === null && isStrong) await partial.setEtag(etag);
  }

  private async receive(answer: Answer, segment: Segment): Promise<void> {
    const { arrived, call } = this.transfers;
    for await (const chunk of answer.chunks()) {
      call.signal.throwIfAborted();
      const room = segment.to - segment.from - segment.done;
      if (chunk.length > room) {
        const expected = `${this.file.bytes} bytes of ${this.file.path}`;
        throw badAnswer(call.asked.name, expected, 'more bytes');
      }
      await this.partial.append(segment, chunk);
      arrived(chunk.length);
    }
  }
}

/**
 * The URL of a file. Redirects lead to a signed URL of another host, which is used until it ends.
 */
class Source {
  private readonly url: string;
  private direct: URL | null = null;

  constructor(
    private readonly call: HubCall,
    commit: string,
    { path }: ListedFile,
  ) {
    const { endpoint } = call.settings;
    const file = path.split('/').map(encodeURIComponent).join('/');
    this.url = `${endpoint}/${call.asked.name}/resolve/${commit}/${file}`;
  }

  async get(headers: Readonly<Record<string, string>>): Promise<Answer> {
    const { direct } = this;
    if (direct) {
      try {
        return await send(this.call, direct, headers);
      } catch (error) {
        if (!(error instanceof DsError)) throw error;
        this.direct = null; // The signature of the URL may have ended.
      }
    }
    const answer = await send(this.call, this.url, headers);
    const isOther = answer.url.origin !== new URL(this.call.settings.endpoint).origin;
    if (isOther) this.direct = answer.url;
    return answer;
  }
}
