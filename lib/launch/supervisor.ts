// Supervision of a tree: its first failure, or a signal, ends all of it.
import { setTimeout as delay } from 'node:timers/promises';

import type { Exit, Member } from './member.js';

export interface Outcome {
  /** The first member that ended otherwise than with exit code 0; not one that was asked to end. */
  failure: Exit | null;
  /** What interrupted the tree. */
  interrupted: NodeJS.Signals | null;
}

/** Milliseconds within which signals are one request: a terminal reaches the whole group, and npm passes its own on. */
const SAME_PRESS = 500;
/** Milliseconds that the last lines of a failure have to arrive. */
const LAST_WORDS = 1000;

export class Supervisor {
  private failure: Exit | null = null;
  private interrupted: NodeJS.Signals | null = null;
  private reported: Promise<void> | null = null;
  private readonly running: Set<Member>;
  private timer: NodeJS.Timeout | null = null;
  private interruptedAt = 0;

  /**
   * `grace`: seconds between asking a member to end and killing it. `report` hears of the first failure
   * while the rest of the tree ends.
   */
  constructor(
    private readonly members: readonly Member[],
    private readonly grace: number,
    private readonly report: (failure: Exit) => void,
  ) {
    this.running = new Set(members);
  }

  /** Resolves when every member has ended. */
  async run(): Promise<Outcome> {
    await Promise.all(this.members.map((member) => this.watch(member)));
    if (this.timer) clearTimeout(this.timer);
    await this.reported;
    return { failure: this.failure, interrupted: this.interrupted };
  }

  /** Asks all to end, by `signal`; where they were asked before, and not just now, kills them. */
  interrupt(signal: NodeJS.Signals): void {
    const now = performance.now();
    const isFirst = this.interrupted === null;
    if (isFirst) this.interruptedAt = now;
    else if (now - this.interruptedAt < SAME_PRESS) return;
    const again = this.timer !== null;
    this.interrupted ??= signal;
    if (again) this.kill();
    else this.end(signal);
  }

  private async watch(member: Member): Promise<void> {
    void member.failing.then((exit) => this.fail(member, exit));
    await member.exited;
    this.running.delete(member);
  }

  private fail(member: Member, exit: Exit): void {
    if (this.failure || this.interrupted) return;
    this.failure = exit;
    this.end('SIGTERM');
    const known = Promise.race([member.exited, delay(LAST_WORDS, null, { ref: false })]);
    this.reported = known.then(() => this.report(exit));
  }

  private end(signal: NodeJS.Signals): void {
    for (const member of this.running) member.stop(signal);
    this.timer ??= setTimeout(() => this.kill(), this.grace * 1000);
  }

  private kill(): void {
    for (const member of this.running) member.kill();
  }
}
