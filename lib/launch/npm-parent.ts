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

/**
 * Returns a notice if npm ends the container: it is process 1, or the only child of an init. The
 * kernel then kills this process while it finishes its work. Null otherwise, and if npm itself is
 * the parent, which waits for this process.
 */
export function npmContainerNotice(command: string): string | null {
  const parent = process.ppid;
  if (!isShellOfNpm(parent)) return null;
  const npm = parentOf(parent);
  const [init = ''] = readWords(1);
  const isFirst = npm === 1 || (parentOf(npm) === 1 && INIT.test(init));
  if (!isFirst) return null;
  return `${command}: npm is the first process of this container, and the container ends with it: a stop cuts requests off. Write "exec ${command}" into package.json, or start ${command} without npm.`;
}

/** Programs of containers that end when their child ends. */
const INIT = /(^|\/)(docker-init|tini|dumb-init|catatonit)$/;

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
