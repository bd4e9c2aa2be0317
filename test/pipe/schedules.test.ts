// Simulates every schedule: it ends, and its idle time and memory match its paper.
import { type Action, isWork, type Transfer, type Work } from '../../lib/pipe/action.js';
import { lower } from '../../lib/pipe/lower.js';
import {
  GPIPE,
  INFERENCE,
  interleaved,
  ONE_F_ONE_B,
  type Schedule,
  ZERO_BUBBLE,
} from '../../lib/pipe/schedules.js';
import { drawSchedule, simulate } from '../../lib/pipe/simulate.js';

const RANKS = Array.from({ length: 16 }, (_, i) => i + 1);
const MICROS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 15, 16, 17, 29, 31, 32, 33, 48, 63, 64];
const work = { F: 3, I: 4, W: 2 };
const { F, I, W } = work;

interface Row {
  schedule: Schedule;
  /** Idle time of each rank; null if the paper gives no value for so few micro-batches. */
  idle: (p: number, m: number) => number | null;
  /** The most micro-batches (times stages) that rank `r` keeps. */
  live: (p: number, m: number, r: number) => number;
  costs?: typeof work;
}

const rows: Row[] = [
  { schedule: GPIPE, idle: (p) => (p - 1) * (F + I + W), live: (_, m) => m },
  {
    schedule: ONE_F_ONE_B,
    idle: (p) => (p - 1) * (F + I),
    live: (p, m, r) => Math.min(p - r, m),
  },
  {
    schedule: ZERO_BUBBLE,
    costs: { F: 1, I: 1, W: 1 },
    idle: (p, m) => (m >= 2 * p - 1 || p === 1 ? p - 1 : null),
    live: (p, m) => Math.min(p, m),
  },
  { schedule: INFERENCE, idle: (p) => (p - 1) * F, live: (_, m) => m },
  ...[2, 3].map((v) => ({
    schedule: interleaved(v),
    // Time per stage; a rank has v stages, so this is F / v of the paper.
    idle: (p: number, m: number) => (m % p === 0 ? (p - 1) * (F + I) : null),
    live: (p: number, m: number, r: number) =>
      Math.min(v * m, 2 * (p - r - 1) + (v - 1) * (p + (m % p)) + 1),
  })),
];

describe.each(rows)('$schedule.name', ({ schedule, idle, live, costs = work }) => {
  test.each(RANKS)('over %d ranks and up to 64 micro-batches', (p) => {
    for (const m of MICROS) {
      const result = simulate(lower(schedule, p, m), { work: costs });
      const expected = idle(p, m);
      if (expected !== null) expect([m, result.idle]).toEqual([m, Array(p).fill(expected)]);
      const liveCounts = Array.from({ length: p }, (_, r) => live(p, m, r));
      const excess = result.live.map((kept, r) => Math.max(0, kept - (liveCounts[r] as number)));
      expect([m, excess]).toEqual([m, Array(p).fill(0)]);
    }
  });

  test('each stage runs each micro-batch once, in order, and reduces after the last', () => {
    for (const [p, m] of [
      [1, 1],
      [3, 7],
      [4, 4],
    ] as const) {
      lower(schedule, p, m).forEach((list, rank) => {
        for (let turn = 0; turn < schedule.stagesPerRank; ++turn) {
          const stage = turn * p + rank;
          const localItems = list.filter((action) => action.stage === stage);
          const kinds = (names: string) =>
            localItems.filter(
              (action): action is Work => isWork(action) && names.includes(action.kind),
            );
          const inOrder = Array.from({ length: m }, (_, i) => i);
          expect(kinds('F').map(({ micro }) => micro)).toEqual(inOrder);
          if (schedule === INFERENCE) continue;
          expect(kinds('BI').map(({ micro }) => micro)).toEqual(inOrder);
          expect(kinds('BW').map(({ micro }) => micro)).toEqual(inOrder);
          const last = localItems.findLastIndex(({ kind }) => kind === 'B' || kind === 'W');
          const reduce = localItems.findIndex(({ kind }) => kind === 'reduce');
          expect(reduce).toBeGreaterThan(last);
          expect(localItems.filter(({ kind }) => kind === 'reduce')).toHaveLength(1);
        }
      });
    }
  });
});

test('the simulation counts transfer times, and stages wait for the longest stage', () => {
  const lists = lower(ONE_F_ONE_B, 2, 4);
  const even = simulate(lists, { work: { F: 1, I: 1, W: 1 } });
  expect(even.time).toBe(3 * 4 + 2);
  const slow = simulate(lists, { work: { F: 1, I: 1, W: 1 }, transfer: 0.25 });
  expect(slow.time).toBeGreaterThan(even.time);
  const uneven = simulate(lists, { work: { F: 1, I: 1, W: 1 }, share: (s) => (s === 0 ? 2 : 1) });
  expect(uneven.idle).toEqual([1, 13]);
});

/** The time of `lists` if a transfer takes no time, but blocks both ranks until they meet. */
function timeOfMeetings(lists: readonly (readonly Action[])[]): number {
  const clocks = lists.map(() => 0);
  const queues = lists.map((list) => list.filter(({ kind }) => kind !== 'reduce') as Work[]);
  const meets = ({ kind, stage, micro }: Action & { micro: number }): string => {
    const sender = kind === 'recvF' ? stage - 1 : kind === 'recvB' ? stage + 1 : stage;
    return `${kind.at(-1)} ${sender} ${micro}`;
  };
  for (let moved = true; moved; ) {
    moved = false;
    queues.forEach((queue, rank) => {
      for (let next = queue[0]; next && isWork(next); next = queue[0]) {
        clocks[rank] = (clocks[rank] as number) + { F: 1, B: 2, I: 1, W: 1 }[next.kind];
        queue.shift();
        moved = true;
      }
      const [ownNext] = queue;
      const peer = (ownNext as unknown as Transfer | undefined)?.peer ?? rank;
      const peerNext = queues[peer]?.[0];
      if (
        !ownNext ||
        !peerNext ||
        peer === rank ||
        isWork(peerNext) ||
        meets(ownNext) !== meets(peerNext)
      )
        return;
      clocks[rank] = clocks[peer] = Math.max(clocks[rank] as number, clocks[peer] as number);
      queue.shift();
      queues[peer]?.shift();
      moved = true;
    });
  }
  expect(queues.flat()).toEqual([]);
  return Math.max(...clocks);
}

test.each(rows)('$schedule.name: blocking transfers never deadlock', (row) => {
  for (const p of [2, 3, 4, 8]) {
    for (const m of MICROS) timeOfMeetings(lower(row.schedule, p, m));
  }
});

test('a receive follows the work next to its send, so a blocking 1F1B does not wait', () => {
  for (const m of [1, 2, 8, 16]) {
    expect(timeOfMeetings(lower(ONE_F_ONE_B, 2, m))).toBe(3 * m + 2);
  }
});

test('the error of a deadlock lists every rank', () => {
  const backwardFirst: Schedule = {
    name: 'backward first',
    stagesPerRank: 1,
    plan: (ranks) =>
      Array.from({ length: ranks }, (_, stage) => [
        { kind: 'B', stage, micro: 0 },
        { kind: 'F', stage, micro: 0 },
      ]),
  };
  expect(() => lower(backwardFirst, 2, 1)).toThrow(
    /rank 0 before B\(stage 0, micro 0\), rank 1 before B\(stage 1, micro 0\)/,
  );
  const lists = lower(ONE_F_ONE_B, 2, 2).map((list) => list.filter(({ kind }) => kind !== 'sendF'));
  expect(() => simulate(lists, { work })).toThrow(/rank 1 before F\(stage 1, micro 0\)/);
});

test('the error of transfers in another order on one rank names them', () => {
  const lists = lower(GPIPE, 2, 2);
  const second = lists[1] as (typeof lists)[0];
  const receives = second.filter(({ kind }) => kind === 'recvF');
  const swapped = [...receives.toReversed(), ...second.filter(({ kind }) => kind !== 'recvF')];
  expect(() => simulate([lists[0] as typeof second, swapped], { work })).toThrow(
    /sendF\(stage 0, micro 0\) for recvF\(stage 1, micro 1\)/,
  );
});

test('the picture of 1F1B over two ranks', () => {
  const picture = drawSchedule(simulate(lower(ONE_F_ONE_B, 2, 3), { work: { F: 1, I: 1, W: 1 } }));
  expect(picture).toBe(
    ['0: F0 F1 .  .  B0 B0 F2 B1 B1 B2 B2', '1: .  F0 B0 B0 F1 B1 B1 F2 I2 W2 .'].join('\n'),
  );
});
