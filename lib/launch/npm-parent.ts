// Detects the end of npm. A SIGTERM to npm does not reach the command that npm has started:
//
//   npm exec ds serve        npm passes SIGTERM on to its shell, then ends
//     sh -c 'ds serve'       ends at once, and passes nothing on
//       ds serve             would keep running without its parents
//
// A terminal's Ctrl-C reaches all three. Shells that replace themselves by the command (bash) leave
// npm as the parent, which passes SIGTERM on.
import { readFileSync } from 'node:fs';

/** Milliseconds between two checks of the parent. */
const INTERVAL_MS = 500;

/**
 * Calls `call` once when the shell of npm has ended, if npm started this process. Does nothing in
 * other processes, and for a script that puts the command into the background (`ds serve &`).
 * Returns a function that ends the watch.
 */
export function onNpmEnd(call: () => void, intervalMs = INTERVAL_MS): () => void {
  const parent = process.ppid;
  if (!isShellOfNpm(parent)) return () => {};
  const timer = setInterval(() => {
    if (process.ppid === parent) return;
    clearInterval(timer);
    call();
  }, intervalMs).unref();
  return () => clearInterval(timer);
}

function isShellOfNpm(pid: number): boolean {
  if (process.env.npm_command === undefined) return false;
  const [, option, script = ''] = readWords(pid);
  const [title = ''] = readWords(parentOf(pid));
  // The "&" of "2>&1" and "&>log" redirects output; it puts nothing into the background.
  const isBackground = /(^|[^&>])&([^&>]|$)/.test(script);
  // npm sets its title: "npm exec ds serve".
  return option === '-c' && !isBackground && /^npm\b/.test(title);
}

/** Returns the words of a command line; empty without /proc or the process. */
function readWords(pid: number): string[] {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, 'utf8').split('\0');
  } catch {
    return [];
  }
}

/** Returns the parent of a process; 0 without /proc or the process. */
function parentOf(pid: number): number {
  try {
    // The name of the program is in parentheses and may contain spaces.
    const [, parent = '0'] =
      /^.*\) \S (\d+)/s.exec(readFileSync(`/proc/${pid}/stat`, 'utf8')) ?? [];
    return Number(parent);
  } catch {
    return 0;
  }
}
