// An unfinished download: a file, and a journal of the ranges that have arrived. A later process
// reads the journal and fetches the rest.
import { type FileHandle, open, rename, rm, stat } from 'node:fs/promises';

/** A range of the file. Its bytes arrive in order. */
export interface Segment {
  readonly from: number;
  readonly to: number;
  /** Number of bytes that have arrived, starting at `from`. */
  done: number;
}

/** The ranges of a file, and the ETag of its version. */
interface Layout {
  segments: readonly Segment[];
  etag: string | null;
}

/**
 * Number of bytes between two entries of the journal. If the process is killed, a segment loses at
 * most so many bytes.
 */
const ENTRY_BYTES = 4 * 2 ** 20;
/** Maximum size of a journal; a larger file is not a journal. */
const JOURNAL_BYTES = 16 * 2 ** 20;

/**
 * An unfinished file. Invariant: a range is in the journal only after its bytes are in the file.
 * The lock of the blob protects both files.
 */
export class PartialFile {
  private readonly recorded = new Map<Segment, number>();

  private constructor(
    private readonly path: string,
    private readonly file: FileHandle,
    private readonly journal: FileHandle,
    private readonly head: string,
    private readonly layout: Layout,
  ) {}

  /**
   * Opens or creates the partial file `path` of `bytes` bytes. `pythonPath` is the partial file of
   * Python's huggingface_hub. Its bytes have arrived in order, so they become the start of this
   * file.
   */
  static async open(
    path: string,
    bytes: number,
    { segmentBytes, pythonPath }: { segmentBytes: number; pythonPath: string },
  ): Promise<PartialFile> {
    const head = `${bytes} ${segmentBytes}`;
    const lines = await readJournal(path);
    const isResumable = (await readSize(path)) === bytes && lines?.[0] === head;
    const segments = createSegments(bytes, segmentBytes);
    let etag: string | null = null;
    if (isResumable) etag = applyJournal(lines.slice(1), segments);
    else {
      await deleteFiles(path);
      const arrived = await readSize(pythonPath);
      if (arrived !== null && arrived <= bytes) {
        await rename(pythonPath, path);
        markArrived(segments, arrived);
      }
    }
    const file = await open(path, isResumable || segments[0]?.done ? 'r+' : 'w+');
    try {
      const journal = await open(toJournalPath(path), 'a');
      const partial = new PartialFile(path, file, journal, head, { segments, etag });
      if (!isResumable) {
        await file.truncate(bytes);
        await journal.write(`${head}\n`);
        for (const segment of segments) if (segment.done > 0) await partial.record(segment);
      } else for (const segment of segments) partial.recorded.set(segment, segment.done);
      return partial;
    } catch (error) {
      await file.close();
      throw error;
    }
  }

  /** Number of bytes that have arrived. */
  get done(): number {
    return this.segments.reduce((sum, { done }) => sum + done, 0);
  }

  /** Appends a chunk to a segment. The chunk must fit. */
  async append(segment: Segment, chunk: Uint8Array): Promise<void> {
    let at = 0;
    while (at < chunk.length) {
      const position = segment.from + segment.done;
      const { bytesWritten } = await this.file.write(chunk, at, chunk.length - at, position);
      at += bytesWritten;
      segment.done += bytesWritten;
    }
    const unrecorded = segment.done - (this.recorded.get(segment) ?? 0);
    if (unrecorded >= ENTRY_BYTES) await this.record(segment);
  }

  /** Writes the progress of a segment to the journal. */
  async record(segment: Segment): Promise<void> {
    if (this.recorded.get(segment) === segment.done) return;
    this.recorded.set(segment, segment.done);
    await this.journal.write(`${segment.from} ${segment.done}\n`);
  }

  /** ETag of the server for the arrived bytes; null if unknown. */
  get etag(): string | null {
    return this.layout.etag;
  }

  get segments(): readonly Segment[] {
    return this.layout.segments;
  }

  /** Records the ETag, so that a later process resumes the same version. */
  async setEtag(etag: string): Promise<void> {
    this.layout.etag = etag;
    await this.journal.write(`etag ${etag}\n`);
  }

  /**
   * Discards all arrived bytes. With `whole`, the file becomes one segment. No process can resume
   * it, because the server does not support ranges.
   */
  async restart(bytes: number, { whole }: { whole: boolean }): Promise<void> {
    const [first] = this.segments;
    const size = whole || !first ? bytes : first.to;
    this.layout.segments = createSegments(bytes, Math.max(1, size));
    this.recorded.clear();
    this.layout.etag = null;
    await this.journal.truncate(0);
    // A process that finds a journal without this header starts from the beginning.
    if (!whole) await this.journal.write(`${this.head}\n`);
  }

  /** Yields the bytes of the complete file, for its checksum. */
  async *readContents(): AsyncGenerator<Uint8Array> {
    const buffer = Buffer.allocUnsafe(2 ** 20);
    for (let at = 0; ; ) {
      const { bytesRead } = await this.file.read(buffer, 0, buffer.length, at);
      if (bytesRead === 0) return;
      yield buffer.subarray(0, bytesRead);
      at += bytesRead;
    }
  }

  /** Flushes the complete file to the disk and renames it to `path`. */
  async complete(path: string): Promise<void> {
    await this.file.sync();
    await this.close();
    await rename(this.path, path);
    await rm(toJournalPath(this.path), { force: true });
  }

  /** Closes the files and keeps them for a later process. Never rejects. */
  async close(): Promise<void> {
    await this.file.close().catch(() => {});
    await this.journal.close().catch(() => {});
  }

  /** Deletes both files. */
  async discard(): Promise<void> {
    await this.close();
    await deleteFiles(this.path);
  }
}

export const toJournalPath = (path: string): string => `${path}.journal`;

async function deleteFiles(path: string): Promise<void> {
  await rm(toJournalPath(path), { force: true });
  await rm(path, { force: true });
}

/**
 * Divides a file into segments of equal size; the last one may be shorter. An empty file has no
 * segment.
 */
function createSegments(bytes: number, segmentBytes: number): Segment[] {
  const count = Math.ceil(bytes / segmentBytes);
  return Array.from({ length: count }, (_, i) => ({
    from: i * segmentBytes,
    to: Math.min(bytes, (i + 1) * segmentBytes),
    done: 0,
  }));
}

/** Marks the first `arrived` bytes of the file as arrived. */
function markArrived(segments: readonly Segment[], arrived: number): void {
  for (const segment of segments) {
    segment.done = Math.max(0, Math.min(arrived, segment.to) - segment.from);
  }
}

/** Sets the progress of `segments` from the lines of a journal. Returns the ETag, or null. */
function applyJournal(lines: readonly string[], segments: readonly Segment[]): string | null {
  const byStart = new Map(segments.map((segment) => [segment.from, segment]));
  let etag: string | null = null;
  for (const line of lines) {
    if (line.startsWith('etag ')) etag = line.slice(5);
    const [, from, done] = /^(\d+) (\d+)$/.exec(line) ?? [];
    const segment = byStart.get(Number(from));
    if (segment) segment.done = Math.min(Number(done), segment.to - segment.from);
  }
  return etag;
}

/**
 * Returns the lines that end with a newline, because a killed process may leave a part of a line.
 * Returns null without a readable journal.
 */
async function readJournal(path: string): Promise<string[] | null> {
  const file = await open(toJournalPath(path), 'r').catch(() => null);
  if (!file) return null;
  try {
    if ((await file.stat()).size > JOURNAL_BYTES) return null;
    return (await file.readFile('utf8')).split('\n').slice(0, -1);
  } finally {
    await file.close();
  }
}

async function readSize(path: string): Promise<number | null> {
  return stat(path).then(
    (status) => (status.isFile() ? status.size : null),
    () => null,
  );
}
