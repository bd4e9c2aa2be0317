// A child process that leads its own process group. It ends together with its descendants.
import { type ChildProcess, type SpawnOptions, spawn } from 'node:child_process';

import type { Reaper } from './reaper.js';

export interface GroupExit {
  code: number | null;
  signal: NodeJS.Signals | null;
  /** Why it could not be started. */
  error: string | null;
}

/** Milliseconds until output ends after its process, if a descendant still holds the pipe open. */
const OUTPUT_GRACE = 1000;

export class ChildGroup {
  readonly child: ChildProcess;
  /** Settles as soon as the head is gone, or could not be started. */
  readonly headExited: Promise<GroupExit>;
  /** Settles when the rest of its group was killed, too, and its output has been read. */
  readonly exited: Promise<GroupExit>;
  private over = false;

  constructor(file: string, args: readonly string[], options: SpawnOptions, reaper: Reaper) {
    this.child = spawn(file, args, { ...options, detached: true });
    const { pid } = this.child;
    if (pid !== undefined) reaper.guard(pid);
    this.headExited = new Promise((resolve) => {
      this.child.on('error', (error) => {
        this.over = true;
        resolve({ code: 1, signal: null, error: error.message });
      });
      this.child.on('exit', (code, signal) => {
        this.signal('SIGKILL');
        this.over = true;
        if (pid !== undefined) reaper.forget(pid);
        resolve({ code, signal, error: null });
      });
    });
    const closed = new Promise((resolve) => this.child.on('close', resolve));
    this.exited = this.headExited.then(async (exit) => {
      if (exit.error !== null) return exit;
      const timer = setTimeout(() => this.closeOutput(), OUTPUT_GRACE);
      await closed;
      clearTimeout(timer);
      return exit;
    });
  }

  /** Sends `signal` to every process of the group, if there is one. */
  signal(signal: NodeJS.Signals): void {
    if (this.over || this.child.pid === undefined) return;
    try {
      process.kill(-this.child.pid, signal);
    } catch {
      // Nobody is left.
    }
  }

  private closeOutput(): void {
    this.child.stdout?.destroy();
    this.child.stderr?.destroy();
  }
}
