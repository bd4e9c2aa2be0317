// Pipeline schedules: the order of the work of each rank in a step. p is the number of ranks; F, B,
// I and W are the times of work (action.ts).
import type { Work, WorkKind } from './action.js';

/** An order of work. lower.ts adds the transfers. */
export interface Schedule {
  /** Name in messages. */
  readonly name: string;
  /** Number of stages per rank. Rank r has the stages r, r + p, r + 2 p, ... of the model. */
  readonly stagesPerRank: number;
  /** Returns the work of each of `ranks` ranks on `micros` micro-batches. */
  plan(ranks: number, micros: number): Work[][];
}

const createWork = (kind: WorkKind, stage: number, micro: number): Work => ({ kind, stage, micro });
const indices = (n: number): number[] => Array.from({ length: n }, (_, i) => i);

/** Returns a schedule with one stage per rank. `order` returns the work of one rank. */
function createSchedule(
  name: string,
  order: (rank: number, ranks: number, micros: number) => Work[],
): Schedule {
  return {
    name,
    stagesPerRank: 1,
    plan: (ranks, micros) => indices(ranks).map((rank) => order(rank, ranks, micros)),
  };
}

/**
 * All forwards, then all backwards. A rank is idle for (p - 1)(F + B), and keeps the activations of
 * all micro-batches. Backwards run in the order of forwards, as on one rank, so gradients
 * accumulate in the same order. Source: Huang et al. 2019 (GPipe).
 */
export const GPIPE = createSchedule('gpipe', (stage, _, micros) => [
  ...indices(micros).map((micro) => createWork('F', stage, micro)),
  ...indices(micros).map((micro) => createWork('B', stage, micro)),
]);

/** Returns alternating forwards and backwards, from the first available gradient on. */
const alternateWork = (stage: number, ranks: number, micros: number): Work[] =>
  alternate(
    indices(micros).map((micro) => createWork('F', stage, micro)),
    indices(micros).map((micro) => createWork('B', stage, micro)),
    Math.min(ranks - stage - 1, micros),
  );

/**
 * Returns `order` with halved backwards after the last forward. The previous stage waits for the
 * input gradients, so they are sent before the weight gradients are computed, as in Qi et al. 2024.
 */
function halveLastBackwards(order: readonly Work[]): Work[] {
  const last = order.findLastIndex(({ kind }) => kind === 'F');
  return order.flatMap((each, i) => {
    const { kind, stage, micro } = each;
    const isAwaited = i > last && kind === 'B' && stage > 0;
    return isAwaited ? [createWork('I', stage, micro), createWork('W', stage, micro)] : [each];
  });
}

/**
 * Forwards and backwards alternate from the first available gradient on. A rank is idle for (p -
 * 1)(F + I), and keeps the activations of p - rank micro-batches. Source: Narayanan et al. 2019
 * (PipeDream-Flush). DeepSpeed's TrainSchedule has this order, with whole backwards.
 */
export const ONE_F_ONE_B = createSchedule('1f1b', (stage, ranks, micros) =>
  halveLastBackwards(alternateWork(stage, ranks, micros)),
);

/**
 * 1F1B with halved backwards. The previous stage waits only for I. Rank r computes W r
 * micro-batches late, in idle time. A rank is idle for (p - 1)(F + I - W), and keeps the
 * activations of p micro-batches. Source: Qi et al. 2024 (ZB-H1).
 */
export const ZERO_BUBBLE = createSchedule('zero-bubble', (stage, ranks, micros) => {
  const order: Work[] = [];
  let [inputs, weights] = [0, 0];
  for (const each of alternateWork(stage, ranks, micros)) {
    if (each.kind === 'F') {
      order.push(each);
      continue;
    }
    order.push(createWork('I', stage, inputs++));
    if (inputs > stage) order.push(createWork('W', stage, weights++));
  }
  while (weights < micros) order.push(createWork('W', stage, weights++));
  return order;
});

/** Only forwards, for evaluation. */
export const INFERENCE = createSchedule('inference', (stage, _, micros) =>
  indices(micros).map((micro) => createWork('F', stage, micro)),
);

/** Returns the forwards of a schedule, in its order and with its number of stages per rank. */
export function selectForwards(schedule: Schedule): Schedule {
  const plan = (ranks: number, micros: number): Work[][] =>
    schedule.plan(ranks, micros).map((order) => order.filter(({ kind }) => kind === 'F'));
  return schedule.stagesPerRank === 1
    ? INFERENCE
    : { ...schedule, name: `${schedule.name}, forwards`, plan };
}

/**
 * Returns 1F1B with v = `stagesPerRank` stages per rank. A rank is idle for (p - 1)(F + I) / v;
 * there are v times as many transfers. Micro-batches run in groups of p; the last group includes a
 * remainder. A stage processes a whole group before the next stage of its rank does. Source:
 * Narayanan et al. 2021 (Megatron-LM's interleaved schedule).
 */
export function interleaved(stagesPerRank: number): Schedule {
  const plan = (ranks: number, micros: number): Work[][] => {
    const groups = groupMicroBatches(micros, ranks);
    const largest = Math.max(...groups.map((group) => group.length));
    const ownStages = indices(stagesPerRank);
    return indices(ranks).map((rank) => {
      const inGroups = (kind: WorkKind, order: readonly number[]): Work[] =>
        groups.flatMap((group) =>
          order.flatMap((own) => group.map((micro) => createWork(kind, own * ranks + rank, micro))),
        );
      const forwards = inGroups('F', ownStages);
      const ahead = 2 * (ranks - rank - 1) + (stagesPerRank - 1) * largest;
      const backwards = inGroups('B', ownStages.toReversed());
      return halveLastBackwards(alternate(forwards, backwards, Math.min(ahead, forwards.length)));
    });
  };
  return { name: `interleaved ${stagesPerRank}`, stagesPerRank, plan };
}

/** Groups micro-batches by `size`. A remainder joins the last group. */
function groupMicroBatches(micros: number, size: number): number[][] {
  const groups = Math.max(1, Math.floor(micros / size));
  return indices(groups).map((i) =>
    indices(micros).slice(i * size, i === groups - 1 ? micros : (i + 1) * size),
  );
}

/** Returns `ahead` forwards, then forwards and backwards in turn, then the remaining backwards. */
function alternate(forwards: Work[], backwards: Work[], ahead: number): Work[] {
  const order = forwards.slice(0, ahead);
  backwards.forEach((backward, i) => {
    const forward = forwards[ahead + i];
    if (forward) order.push(forward);
    order.push(backward);
  });
  return order;
}
