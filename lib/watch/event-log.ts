// Appends the events of a run to a file in its folder.

import { dirname } from 'node:path';
import { AppendFile, makeFolder } from '../monitor/append-file.js';
import { errorMessage } from '../runtime/system-error.js';
import { encodeEvent, eventsPath, type RunEvent, type UntimedEvent } from './events.js';

/** Maximum milliseconds that an event stays in the buffer while the event loop or steps run. */
const BUFFER_MS = 200;
/** Maximum number of characters in the buffer. */
const BUFFER_LENGTH = 65_536;

/**
 * Appends events in blocks of whole lines. After kill -9, the events of the last BUFFER_MS are
 * missing, and the last line may be incomplete. A later process starts on a new line.
 *
 * A failed write ends the log with one warning DS_MONITOR, and the run continues.
 */
export class EventLog {
  private readonly file: AppendFile;
  private buffer = '';
  private writtenAt = Number.NEGATIVE_INFINITY;
  private timer: NodeJS.Timeout | null = null;
  private isOpen = true;
  private readonly onExit = (): void => this.close();

  /** Opens RUN_DIR/watch/events.jsonl. Throws DS_IO if it cannot be opened. */
  constructor(dir: string) {
    const path = eventsPath(dir);
    makeFolder(dirname(path));
    this.file = new AppendFile(path);
    if (this.file.lastByte !== null && this.file.lastByte !== NEWLINE) this.buffer = '\n';
    process.on('exit', this.onExit);
  }

  /** Path of the file. */
  get path(): string {
    return this.file.path;
  }

  /** Adds the time and buffers the event. Writes the buffer if the last write was BUFFER_MS ago. */
  write(event: UntimedEvent): void {
    if (!this.isOpen) return;
    this.buffer += encodeEvent({ ...event, time: Date.now() } as RunEvent);
    const isDue = performance.now() - this.writtenAt >= BUFFER_MS;
    if (isDue || this.buffer.length >= BUFFER_LENGTH) this.writeBuffer();
    else this.timer ??= setTimeout(() => this.writeBuffer(), BUFFER_MS).unref();
  }

  /** Resolves when all events are on the disk. */
  async flush(): Promise<void> {
    this.writeBuffer();
    if (this.isOpen) await this.file.sync();
  }

  close(): void {
    if (!this.isOpen) return;
    this.writeBuffer();
    this.isOpen = false;
    process.off('exit', this.onExit);
    this.file.close();
  }

  private writeBuffer(): void {
    if (this.timer) clearTimeout(this.timer);
    this.timer = null;
    this.writtenAt = performance.now();
    const text = this.buffer;
    this.buffer = '';
    if (!this.isOpen || text === '') return;
    try {
      this.file.append(Buffer.from(text));
    } catch (error) {
      this.isOpen = false;
      process.off('exit', this.onExit);
      this.file.close();
      const warning = `The log of ds watch failed and is switched off: ${errorMessage(error)}`;
      process.emitWarning(warning, { type: 'DsWarning', code: 'DS_MONITOR' });
    }
  }
}

const NEWLINE = 10;
