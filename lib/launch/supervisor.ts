// Supervision of a tree: its first failure, or a signal, ends all of it.
import type { Exit, Member } from './member.js';

export interface Outcome {
  /** The first member that ended otherwise than with exit code 0; not one that was asked to end. */
  failure: Exit | null;
  /** What interrupted the tree. */
  interrupted: NodeJS.Signals | null;
}

export class Supervisor {
  private failure: Exit | null = null;
  private interrupted: NodeJS.Signals | null = null;
  private readonly running: Set<Member>;
  private timer: NodeJS.Timeout | null = null;

  /** `grace`: seconds between asking a member to end and killing it. */
  constructor(
    private readonly members: readonly Member[],
    private readonly grace: number,
  ) {
    this.running = new Set(members);
  }

  /** Resolves when every member has ended. `failed` hears of the first failure at once. */
  async run(failed: (exit: Exit) => void): Promise<Outcome> {
    await Promise.all(this.members.map((member) => this.watch(member, failed)));
    if (this.timer) clearTimeout(this.timer);
    return { failure: this.failure, interrupted: this.interrupted };
  }

  /** Asks all to end, by `signal`; where they were asked before, kills them. */
  interrupt(signal: NodeJS.Signals): void {
    const again = this.timer !== null;
    this.interrupted ??= signal;
    if (again) this.kill();
    else this.end(signal);
  }

  private async watch(member: Member, failed: (exit: Exit) => void): Promise<void> {
    const judge = (exit: Exit) => {
      if (exit.code === 0 || this.failure || this.interrupted) return;
      this.failure = exit;
      failed(exit);
      this.end('SIGTERM');
    };
    void member.failing?.then(judge);
    const exit = await member.exited;
    this.running.delete(member);
    judge(exit);
  }

  private end(signal: NodeJS.Signals): void {
    for (const member of this.running) member.stop(signal);
    this.timer ??= setTimeout(() => this.kill(), this.grace * 1000);
  }

  private kill(): void {
    for (const member of this.running) member.kill();
  }
}
