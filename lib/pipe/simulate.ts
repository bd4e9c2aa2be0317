// Simulates the actions of all ranks: whether they end, and each rank's idle time and kept
// activations.

import { DsError } from '../errors.js';
import { required } from '../runtime/required.js';
import {
  type Action,
  deadlockError,
  describeAction,
  isWork,
  listInputs,
  rankOf,
  type Transfer,
  type Work,
  type WorkKind,
  workKey,
} from './action.js';

/** Durations of work and transfers, in any unit of time. */
export interface Costs {
  /**
   * Durations of a stage's forward (F), and of the halves of its backward (I, W). B takes I + W.
   */
  readonly work: Readonly<Record<'F' | 'I' | 'W', number>>;
  /** Duration of a transfer. Default: 0. */
  readonly transfer?: number;
  /** Returns a factor for the durations of stage `stage`. Default: 1 for all stages. */
  readonly share?: (stage: number) => number;
}

/** Start and end of a piece of work on a rank. */
export interface Span {
  /** The work. */
  readonly work: Work;
  /** Start time, from the start of the run. */
  readonly from: number;
  /** End time, from the start of the run. */
  readonly to: number;
}

/** The result of a simulation. */
export interface Simulation {
  /** Time from the first forward to the end of the last backward of any rank. */
  readonly time: number;
  /** The work of each rank, in order. */
  readonly spans: readonly (readonly Span[])[];
  /** Idle time of each rank within `time`. */
  readonly idle: readonly number[];
  /** The largest number of kept activations of each rank: pairs of a micro-batch and a stage. */
  readonly live: readonly number[];
}

/** The transfers between two ranks in one direction. They run in the order of their calls. */
interface Channel {
  sent: { transfer: Transfer; at: number }[];
  /** Receives that were called and are not complete. */
  awaited: { transfer: Transfer; at: number }[];
  free: number;
}

/**
 * Simulates the lists that lower() returns. Transfers are asynchronous, and every rank performs its
 * actions in order. Throws DS_INTERNAL if the lists never end; the error names the next action of
 * each rank. Throws it too if two ranks issue their transfers in different orders.
 */
export function simulate(lists: readonly (readonly Action[])[], costs: Costs): Simulation {
  return new Simulator(lists, costs).run();
}

class Simulator {
  /** End time of complete work, by workKey(). */
  private readonly completed = new Map<string, number>();
  /** Arrival time of values, by kind, stage and micro-batch of the receive. */
  private readonly arrived = new Map<string, number>();
  private readonly channels = new Map<string, Channel>();
  private readonly clocks: number[];
  private readonly next: number[];
  private readonly spans: Span[][];
  private readonly stages: number;

  constructor(
    private readonly lists: readonly (readonly Action[])[],
    private readonly costs: Costs,
  ) {
    this.clocks = lists.map(() => 0);
    this.next = lists.map(() => 0);
    this.spans = lists.map(() => []);
    this.stages = 1 + lists.flat().reduce((max, { stage }) => Math.max(max, stage), 0);
  }

  run(): Simulation {
    const { lists, next } = this;
    const nextActions = (): (Action | undefined)[] =>
      lists.map((list, i) => list[required(next[i])]);
    for (let waiting = nextActions(); waiting.some(Boolean); waiting = nextActions()) {
      const moved = waiting.map(
        (action, rank) => action !== undefined && this.perform(action, rank),
      );
      if (!moved.includes(true)) throw deadlockError('pipeline simulation', waiting);
    }
    const time = Math.max(0, ...this.clocks);
    const busy = this.spans.map((spans) => spans.reduce((sum, { from, to }) => sum + to - from, 0));
    return {
      time,
      spans: this.spans,
      idle: busy.map((each) => time - each),
      live: this.spans.map(countLive),
    };
  }

  /** Performs the next action of rank `rank`. Returns false if the action must wait. */
  private perform(action: Action, rank: number): boolean {
    const isDone = isWork(action)
      ? this.compute(action, rank)
      : action.kind === 'reduce' || this.transfer(action, rank);
    if (isDone) this.next[rank] = required(this.next[rank]) + 1;
    return isDone;
  }

  private compute(work: Work, rank: number): boolean {
    const from = this.findInputTime(work);
    if (from === null) return false;
    const start = Math.max(required(this.clocks[rank]), from);
    const end = start + this.duration(work);
    this.clocks[rank] = end;
    this.completed.set(workKey(work), end);
    this.spans[rank]?.push({ work, from: start, to: end });
    return true;
  }

  /**
   * Returns the time at which all inputs of `work` are available; null if the time is not yet
   * known.
   */
  private findInputTime(work: Work): number | null {
    const ranks = this.lists.length;
    let latest = 0;
    for (const either of listInputs(work, this.stages)) {
      const times = either.map((need) => {
        const isHere = rankOf(need.stage, ranks) === rankOf(work.stage, ranks);
        const kind = work.kind === 'F' ? 'recvF' : 'recvB';
        return isHere
          ? this.completed.get(workKey(need))
          : this.arrived.get(`${kind} ${work.stage} ${work.micro}`);
      });
      const time = times.find((each) => each !== undefined);
      if (time === undefined) return null;
      latest = Math.max(latest, time);
    }
    return latest;
  }

  private duration({ kind, stage }: Work): number {
    const { work, share = () => 1 } = this.costs;
    const costs: Record<WorkKind, number> = { ...work, B: work.I + work.W };
    return costs[kind] * share(stage);
  }

  /** Starts a transfer. A transfer never blocks its rank; later work waits for its inputs. */
  private transfer(transfer: Transfer, rank: number): true {
    const sends = transfer.kind.startsWith('send');
    const ends = sends ? [rank, transfer.peer] : [transfer.peer, rank];
    const channel = this.channel(`${ends.join(' to ')} ${transfer.kind.at(-1)}`);
    const at = required(this.clocks[rank]);
    (sends ? channel.sent : channel.awaited).push({ transfer, at });
    this.matchTransfers(channel);
    return true;
  }

  private channel(name: string): Channel {
    const known = this.channels.get(name) ?? { sent: [], awaited: [], free: 0 };
    this.channels.set(name, known);
    return known;
  }

  private matchTransfers(channel: Channel): void {
    for (;;) {
      const [sent, awaited] = [channel.sent[0], channel.awaited[0]];
      if (!sent || !awaited) return;
      requireSame(sent.transfer, awaited.transfer);
      channel.free = Math.max(sent.at, awaited.at, channel.free) + (this.costs.transfer ?? 0);
      const { kind, stage, micro } = awaited.transfer;
      this.arrived.set(`${kind} ${stage} ${micro}`, channel.free);
      channel.sent.shift();
      channel.awaited.shift();
    }
  }
}

function requireSame(sent: Transfer, awaited: Transfer): void {
  const step = sent.kind === 'sendF' ? 1 : -1;
  if (sent.micro === awaited.micro && sent.stage + step === awaited.stage) return;
  throw new DsError({
    code: 'DS_INTERNAL',
    op: 'pipeline simulation',
    expected: 'transfers in one order on both ranks',
    got: `${describeAction(sent)} for ${describeAction(awaited)}`,
  });
}

/**
 * Returns the largest number of kept activations. They are kept from the start of F to the end of B
 * or W.
 */
function countLive(spans: readonly Span[]): number {
  let [live, max] = [0, 0];
  for (const { work } of spans) {
    if (work.kind === 'F') max = Math.max(max, ++live);
    if (work.kind === 'B' || work.kind === 'W') live--;
  }
  return max;
}

/**
 * Returns a drawing with one line per rank and one column per unit of time. "F3" is the forward of
 * micro-batch 3 in the rank's first stage, "F3.1" in its second stage, "." is an idle unit.
 */
export function drawSchedule({ spans, time }: Simulation): string {
  const ranks = spans.length;
  const cells = spans.map((row) => {
    const line = Array.from({ length: Math.ceil(time) }, () => '.');
    for (const { work, from, to } of row) {
      const own = Math.floor(work.stage / ranks);
      const name = `${work.kind}${work.micro}${own > 0 ? `.${own}` : ''}`;
      for (let unit = Math.floor(from); unit < to; ++unit) line[unit] = name;
    }
    return line;
  });
  const width = Math.max(1, ...cells.flat().map((cell) => cell.length));
  const lines = cells.map((line, rank) => [`${rank}:`, ...line.map((cell) => cell.padEnd(width))]);
  return lines.map((line) => line.join(' ').trimEnd()).join('\n');
}
