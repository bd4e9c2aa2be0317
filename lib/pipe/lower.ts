// Converts a schedule's work to the actions of each rank: adds transfers after work with results
// for other ranks, and reductions after complete gradients.
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
 * Returns the actions of each of `ranks` ranks. A send and its receive enter both lists at the same
 * time, so the transfers between two ranks have one order on both, in each direction. Two
 * consecutive halves of a backward become one (B), unless the first half's result is sent between
 * them. Throws DS_INTERNAL for a schedule that never ends. Source: the lowering of
 * torch.distributed.pipelining's schedules.
 */
export function lower(schedule: Schedule, ranks: number, micros: number): Action[][] {
  const stages = ranks * schedule.stagesPerRank;
  const stays = (half: Work): boolean => findSend(half, stages, ranks) === null;
  const plan = schedule.plan(ranks, micros).map((order) => mergeHalves(order, stays));
  return plan.length === 0 ? [] : addReductions(addTransfers(plan, stages));
}

/** `stays`: no other rank waits for the result of the first half. */
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
 * Processes the work in rounds. In each round, every rank with available inputs does its next work,
 * and then the results are sent. A receive is placed where its sender sends, after the receiver's
 * own work of that round: on a GPU an earlier receive takes resources from compute. One order holds
 * for all ranks, so there is no circular wait even if all transfers of a rank wait for each other.
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

/** Returns the transfer of the result of `work` to another rank, or null. */
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
 * Places reductions after the last work that adds to a stage's gradients, and after its sends. They
 * overlap the next work.
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
