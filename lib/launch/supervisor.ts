// Supervision of a tree: its first failure, or a signal, ends all of it.

import { setTimeout as delay, setImmediate as turn } from 'node:timers/promises';
import { required } from '../runtime/required.js';

import { timerMs } from '../runtime/timer.js';
import type { Exit, JobProcess } from './member.js';

/** Signals to a launcher that end its job. */
export const INTERRUPTS = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const;

export interface Outcome {
  /** The first member with an exit code other than 0, except members that were asked to end. */
  failure: Exit | null;
  /** The signal that interrupted the tree. */
  interrupted: NodeJS.Signals | null;
}

/**
 * Milliseconds within which signals are one request: a terminal reaches the whole group, and npm
 * passes its own on.
 */
const SAME_PRESS = 500;
/** Milliseconds that the last lines of a failure have to arrive. */
const LAST_WORDS = 1000;
/** Milliseconds that a rank has to end which another one names as the reason of its own end. */
const BLAMED = 3000;

export class Supervisor {
  private failure: Exit | null = null;
  private interrupted: NodeJS.Signals | null = null;
  private reported: Promise<void> | null = null;
  private readonly running: Set<JobProcess>;
  private timer: NodeJS.Timeout | null = null;
  private interruptedAt = 0;
  /** Members may end by SIGKILL because of this object. */
  private isKilling = false;
  private readonly exits: Exit[] = [];

  /**
   * `grace`: seconds between the stop request and the kill of a member. `report` is called at the
   * first failure, while the other members end.
   */
  constructor(
    private readonly members: readonly JobProcess[],
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

  /**
   * Sends `signal` to all members. A second one kills them, unless it belongs to the same press.
   */
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

  private async watch(member: JobProcess): Promise<void> {
    void member.failing.then((exit) => this.fail(member, exit));
    this.exits.push(await member.exited);
    this.running.delete(member);
  }

  private fail(member: JobProcess, exit: Exit): void {
    if (this.failure || this.interrupted) return;
    this.failure = exit;
    this.end('SIGTERM');
    const known = Promise.race([member.exited, patience(LAST_WORDS)]);
    this.reported = known.then(async () => {
      const culprit = await this.culpritOf(exit);
      if (culprit) this.failure = culprit;
      this.report(culprit ?? exit);
    });
  }

  /**
   * Returns the rank that caused `exit`, if the output blames a rank and that rank failed by
   * itself. A rank without memory may end later than the ranks that report its loss.
   */
  private async culpritOf(exit: Exit): Promise<Exit | null> {
    const ranks = blamedRanks(exit);
    if (ranks.length === 0) return null;
    const isCulprit = ({ who }: Exit): boolean =>
      ranks.some((rank) => who === rank || who.startsWith(`${rank} on `));
    const all = Promise.all(this.members.map(({ exited }) => exited));
    await Promise.race([all, patience(BLAMED)]);
    const culprit = this.exits.find(isCulprit);
    if (!culprit || culprit.code === 0 || isEcho(culprit)) return null;
    // A culprit that was asked to end before it ended by itself takes the exit of the member that
    // blamed it.
    const isAsked =
      culprit.signal === 'SIGTERM' || (culprit.signal === 'SIGKILL' && this.isKilling);
    if (!isAsked || culprit.lastLines.length === 0) return isAsked ? null : culprit;
    return { ...culprit, code: exit.code, signal: exit.signal };
  }

  private end(signal: NodeJS.Signals): void {
    if (this.running.size === 0) return; // All have ended: a timer would keep the process alive.
    for (const member of this.running) member.stop(signal);
    this.timer ??= setTimeout(() => this.kill(), timerMs(this.grace));
  }

  private kill(): void {
    this.isKilling = true;
    for (const member of this.running) member.kill();
  }
}

/**
 * Waits, and then lets other events of this time run first. If the process was blocked, the timer
 * comes before the exit events of members.
 */
async function patience(milliseconds: number): Promise<void> {
  await delay(milliseconds, null, { ref: false });
  for (let i = 0; i < 2; ++i) await turn();
}

const isEcho = ({ lastLines }: Exit): boolean => lastLines.some((line) => line.includes('DS_COMM'));

/** "rank 1", which a job's verdict names as the reason: it ended, left, or did not arrive. */
function blamedRanks(exit: Exit): string[] {
  if (!isEcho(exit)) return [];
  const named = exit.lastLines.join('\n').matchAll(/\b(rank \d+)(?=: | did not arrive| has left)/g);
  const ranks = new Set(Array.from(named, ([, rank]) => required(rank)));
  return [...ranks].filter((rank) => exit.who !== rank && !exit.who.startsWith(`${rank} on `));
}
