// A child process that leads its own process group and ends together with its descendants.
import { type ChildProcess, type SpawnOptions, spawn } from 'node:child_process';

import type { Reaper } from './reaper.js';

interface GroupExit {
  code: number | null;
  signal: NodeJS.Signals | null;
  /** The reason why the process could not be started, or null. */
  error: string | null;
}

/** Milliseconds that descendants may hold the output open after the process has ended. */
const OUTPUT_GRACE = 1000;

export class ChildGroup {
  readonly child: ChildProcess;
  /** Resolves when the leader has ended, or could not be started. */
  readonly leaderExited: Promise<GroupExit>;
  /** Resolves when the whole group has ended and its output has been read. */
  readonly exited: Promise<GroupExit>;
  private hasExited = false;

  constructor(file: string, args: readonly string[], options: SpawnOptions, reaper: Reaper) {
    this.child = spawn(file, args, { ...options, detached: true });
    const { pid } = this.child;
    if (pid !== undefined) reaper.guard(pid);
    this.leaderExited = new Promise((resolve) => {
      this.child.on('error', (error) => {
        this.hasExited = true;
        resolve({ code: 1, signal: null, error: error.message });
      });
      this.child.on('exit', (code, signal) => {
        this.signal('SIGKILL');
        this.hasExited = true;
        if (pid !== undefined) reaper.forget(pid);
        resolve({ code, signal, error: null });
      });
    });
    const closed = new Promise((resolve) => this.child.on('close', resolve));
    this.exited = this.leaderExited.then(async (exit) => {
      if (exit.error !== null) return exit;
      const timer = setTimeout(() => this.closeOutput(), OUTPUT_GRACE);
      await closed;
      clearTimeout(timer);
      return exit;
    });
  }

  /** Sends `signal` to every process of the group; does nothing after the group's end. */
  signal(signal: NodeJS.Signals): void {
    if (this.hasExited || this.child.pid === undefined) return;
    try {
      process.kill(-this.child.pid, signal);
    } catch {
      // All processes of the group have ended.
    }
  }

  private closeOutput(): void {
    this.child.stdout?.destroy();
    this.child.stderr?.destroy();
  }
}
