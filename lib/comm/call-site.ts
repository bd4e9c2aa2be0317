// Finds the line of the user's program that issued a collective, for messages.
import { basename, dirname, sep } from 'node:path';

/** Frames of this folder and of the runtime are not the caller. */
const libraryFolders = [__dirname, `${dirname(__dirname)}${sep}runtime`];

/** Returns "train.js:12": the nearest frame outside of the library's communication code, or ''. */
export function callSite(): string {
  const holder: { stack?: string } = {};
  const { stackTraceLimit } = Error;
  Error.stackTraceLimit = 8;
  Error.captureStackTrace(holder, callSite);
  Error.stackTraceLimit = stackTraceLimit;
  for (const frame of (holder.stack ?? '').split('\n').slice(1)) {
    const [, file, line] = /\(?((?:file:\/\/)?\/[^():]*):(\d+):\d+\)?$/.exec(frame) ?? [];
    if (!file || libraryFolders.some((folder) => file.includes(folder + sep))) continue;
    return `${basename(file)}:${line}`;
  }
  return '';
}
