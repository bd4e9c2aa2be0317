// Where in the user's program a collective was issued, for messages.
import { basename, dirname, sep } from 'node:path';

/** This room's own frames, and those of the runtime below it, are not the caller. */
const own = [__dirname, `${dirname(__dirname)}${sep}runtime`];

/**
 * "train.js:12": the nearest frame outside the library's communication code; '' where there is
 * none.
 */
export function callSite(): string {
  const holder: { stack?: string } = {};
  const { stackTraceLimit } = Error;
  Error.stackTraceLimit = 8;
  Error.captureStackTrace(holder, callSite);
  Error.stackTraceLimit = stackTraceLimit;
  for (const frame of (holder.stack ?? '').split('\n').slice(1)) {
    const [, file, line] = /\(?((?:file:\/\/)?\/[^():]*):(\d+):\d+\)?$/.exec(frame) ?? [];
    if (!file || own.some((folder) => file.includes(folder + sep))) continue;
    return `${basename(file)}:${line}`;
  }
  return '';
}
