// Converts the work of a schedule to the actions of each rank. It adds transfers of results that
// other ranks need, and reductions after gradients are complete.
import { required } from '../runtime/required.js';
import {
  type Action,
  deadlockError,
  listInputs,
  rankOf,
  type Transfer,
  type Work,
  workKey,
} from './action.js';
import type { Schedule } from './schedules.js';

/**
 * Returns the actions of each of `ranks` ranks for `micros` micro-batches.
 *
 * - A send and its receive are added to both lists at the same time. So the transfers of a
 *   direction between two ranks have the same order on both.
 * - Two consecutive halves of a backward become one backward (B), unless the result of the first
 *   half is sent between them.
 *
 * Throws DS_INTERNAL if the work of the schedule can never complete. Source: the lowering of
 * torch.distributed.pipelining's schedules.
 */
export function lower(schedule: Schedule, ranks: number, micros: number): Action[][] {
  const stages = ranks * schedule.stagesPerRank;
  const stays = (half: Work): boolean => findSend(half, stages, ranks) === null;
  const plan = schedule.plan(ranks, micros).map((order) => mergeHalves(order, stays));
  return plan.length === 0 ? [] : addReductions(addTransfers(plan, stages));
}

/**
 * Merges consecutive halves. `stays`: whether no other rank waits for the result of the first half.
 */
function mergeHalves(order: readonly Work[], stays: (half: Work) => boolean): Work[] {
  const merged: Work[] = [];
  for (const work of order) {
    const last = merged.at(-1);
    const completes = work.kind === 'W' && last?.kind === 'I' && last.stage === work.stage;
    const isWholeBackward = completes && last.micro === work.micro && stays(last);
    if (isWholeBackward) merged[merged.length - 1] = { ...work, kind: 'B' };
    else merged.push(work);
  }
  return merged;
}

/**
 * Adds transfers to the work of all ranks, in rounds. In a round, a rank performs its next work if
 * the inputs are there. Then the results are sent.
 *
 * A receive is placed where its sender sends, after the receiver's own work of that round. On a
 * GPU, an earlier receive would take resources from compute. All ranks follow one order. So no
 * ranks wait for each other in a circle, even if all transfers of a rank wait for one another.
 */
function addTransfers(plan: readonly Work[][], stages: number): Action[][] {
  const ranks = plan.length;
  const lists: Action[][] = plan.map(() => []);
  const next = plan.map(() => 0);
  const done = new Set<string>();
  const isReady = (work: Work): boolean =>
    listInputs(work, stages).every((either) => either.some((need) => done.has(workKey(need))));
  const hasWorkLeft = (): boolean =>
    plan.some((order, rank) => required(next[rank]) < order.length);
  while (hasWorkLeft()) {
    const round = plan.map((order, rank) => order[required(next[rank])]);
    const ready = round.map((work) => work !== undefined && isReady(work));
    if (!ready.includes(true)) throw deadlockError('pipeline schedule', round);
    round.forEach((work, rank) => {
      if (!work || !ready[rank]) return;
      next[rank] = required(next[rank]) + 1;
      done.add(workKey(work));
      lists[rank]?.push(work);
    });
    round.forEach((work, rank) => {
      if (!work || !ready[rank]) return;
      const sent = findSend(work, stages, ranks);
      if (!sent) return;
      lists[rank]?.push(sent);
      lists[sent.peer]?.push(matchingReceive(sent, rank));
    });
  }
  return lists;
}

/** Returns the transfer that sends the result of `work` to another rank, or null. */
function findSend({ kind, stage, micro }: Work, stages: number, ranks: number): Transfer | null {
  if (kind === 'W') return null;
  const to = kind === 'F' ? stage + 1 : stage - 1;
  const peer = rankOf(to, ranks);
  if (to < 0 || to === stages || peer === rankOf(stage, ranks)) return null;
  return { kind: kind === 'F' ? 'sendF' : 'sendB', stage, micro, peer };
}

function matchingReceive({ kind, stage, micro }: Transfer, peer: number): Transfer {
  if (kind === 'sendF') return { kind: 'recvF', stage: stage + 1, micro, peer };
  return { kind: 'recvB', stage: stage - 1, micro, peer };
}

/**
 * Places the reduction of a stage's gradients after the last work that adds to them, and after the
 * stage's sends. It overlaps the next work.
 */
function addReductions(lists: readonly Action[][]): Action[][] {
  return lists.map((list) => {
    const last = new Map<number, number>();
    list.forEach(({ kind, stage }, i) => {
      if (kind === 'B' || kind === 'W' || kind === 'sendB') last.set(stage, i);
    });
    return list.flatMap((action, i): Action[] => {
      const { stage } = action;
      return last.get(stage) === i ? [action, { kind: 'reduce', stage }] : [action];
    });
  });
}
