// Supervises the processes of a job: the first failure, or a signal, ends all of them.

import { setTimeout as delay } from 'node:timers/promises';
import { waitForEventLoop } from '../runtime/event-loop.js';
import { required } from '../runtime/required.js';

import { timerMs } from '../runtime/timer.js';
import type { Exit, JobProcess } from './member.js';

/** Signals to a launcher that end its job. */
export const INTERRUPTS = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const;

export interface Outcome {
  /** The first member with an exit code other than 0, except members after a stop request. */
  failure: Exit | null;
  /** The signal that interrupted the job, or null. */
  interrupted: NodeJS.Signals | null;
}

/**
 * Signals within this number of milliseconds are one request: a terminal signals the whole group,
 * and npm forwards its own signal.
 */
const SAME_REQUEST_MS = 500;
/** Milliseconds to wait for the last lines of a failed member. */
const LAST_LINES_MS = 1000;
/** Milliseconds to wait for the end of a rank that another rank blames for its own end. */
const BLAMED_RANK_MS = 3000;

export class Supervisor {
  private failure: Exit | null = null;
  private interrupted: NodeJS.Signals | null = null;
  private reporting: Promise<void> | null = null;
  private readonly running: Set<JobProcess>;
  private timer: NodeJS.Timeout | null = null;
  private interruptedAt = 0;
  /** Whether this object sends SIGKILL to members. */
  private isKilling = false;
  private readonly exits: Exit[] = [];

  /**
   * `grace`: seconds between the stop request and the kill of a member. `report` is called at the
   * first failure, while other members are still ending.
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
    await this.reporting;
    return { failure: this.failure, interrupted: this.interrupted };
  }

  /**
   * Sends `signal` to all members. A later signal kills them, unless it belongs to the same
   * request.
   */
  interrupt(signal: NodeJS.Signals): void {
    const now = performance.now();
    const isFirst = this.interrupted === null;
    if (isFirst) this.interruptedAt = now;
    else if (now - this.interruptedAt < SAME_REQUEST_MS) return;
    const isStopping = this.timer !== null;
    this.interrupted ??= signal;
    if (isStopping) this.killMembers();
    else this.stopMembers(signal);
  }

  /** Calls interrupt() unless a signal has interrupted the job. */
  interruptOnce(signal: NodeJS.Signals): void {
    if (this.interrupted === null) this.interrupt(signal);
  }

  private async watch(member: JobProcess): Promise<void> {
    void member.failing.then((exit) => this.recordFailure(member, exit));
    this.exits.push(await member.exited);
    this.running.delete(member);
  }

  private recordFailure(member: JobProcess, exit: Exit): void {
    if (this.failure || this.interrupted) return;
    this.failure = exit;
    this.stopMembers('SIGTERM');
    const lastLinesRead = Promise.race([member.exited, waitForExits(LAST_LINES_MS)]);
    this.reporting = lastLinesRead.then(async () => {
      const culprit = await this.findCulprit(exit);
      if (culprit) this.failure = culprit;
      this.report(culprit ?? exit);
    });
  }

  /**
   * Returns the rank that caused `exit`, if the output blames a rank and that rank failed by
   * itself. A rank without memory may end later than the ranks that report its loss.
   */
  private async findCulprit(exit: Exit): Promise<Exit | null> {
    const ranks = findBlamedRanks(exit);
    if (ranks.length === 0) return null;
    const isCulprit = ({ who }: Exit): boolean =>
      ranks.some((rank) => who === rank || who.startsWith(`${rank} on `));
    const allExited = Promise.all(this.members.map(({ exited }) => exited));
    await Promise.race([allExited, waitForExits(BLAMED_RANK_MS)]);
    const culprit = this.exits.find(isCulprit);
    if (!culprit || culprit.code === 0 || reportsOtherRank(culprit)) return null;
    // A culprit that received the stop request first takes the exit of the member that blamed it.
    const isAsked =
      culprit.signal === 'SIGTERM' || (culprit.signal === 'SIGKILL' && this.isKilling);
    if (!isAsked || culprit.lastLines.length === 0) return isAsked ? null : culprit;
    return { ...culprit, code: exit.code, signal: exit.signal };
  }

  private stopMembers(signal: NodeJS.Signals): void {
    if (this.running.size === 0) return; // All have ended: a timer would keep the process alive.
    for (const member of this.running) member.stop(signal);
    this.timer ??= setTimeout(() => this.killMembers(), timerMs(this.grace));
  }

  private killMembers(): void {
    this.isKilling = true;
    for (const member of this.running) member.kill();
  }
}

/**
 * Waits, then lets pending events run: after a blocked event loop, the timer would precede the exit
 * events of members.
 */
async function waitForExits(milliseconds: number): Promise<void> {
  await delay(milliseconds, null, { ref: false });
  for (let i = 0; i < 2; ++i) await waitForEventLoop();
}

const reportsOtherRank = ({ lastLines }: Exit): boolean =>
  lastLines.some((line) => line.includes('DS_COMM'));

/**
 * Returns the ranks ("rank 1") that a communication error blames: they ended, left, or did not
 * arrive.
 */
function findBlamedRanks(exit: Exit): string[] {
  if (!reportsOtherRank(exit)) return [];
  const named = exit.lastLines.join('\n').matchAll(/\b(rank \d+)(?=: | did not arrive| has left)/g);
  const ranks = new Set(Array.from(named, ([, rank]) => required(rank)));
  return [...ranks].filter((rank) => exit.who !== rank && !exit.who.startsWith(`${rank} on `));
}
