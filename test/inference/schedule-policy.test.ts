// Turns of clients and priorities, counted in steps of a scheduler.
import type { PolicySettings } from '../../lib/inference/schedule-policy.js';
import { Scheduler, type SchedulerLimits } from '../../lib/inference/scheduler.js';
import { Sequence, type SequenceTurn } from '../../lib/inference/sequence.js';

const FAIR: PolicySettings = { policy: 'fair', maxWait: 1000 };
const room: SchedulerLimits = {
  tokens: 64,
  sequences: 4,
  blocks: 400,
  blockSize: 4,
  sharesPrefixes: true,
  policy: FAIR,
};

let result = 0;

/** A sequence with a prompt that no other one has. */
function sequenceOf(prompt: number, tokens: number, turn: Partial<SequenceTurn> = {}): Sequence {
  const words = Array.from({ length: prompt }, (_, i) => (i === 0 ? ++result : i));
  return new Sequence(words, prompt + tokens, '', -1, turn);
}

/** Runs a step; returns the tokens that it computed, by client. */
function step(scheduler: Scheduler): Map<string, number> {
  const slices = scheduler.plan();
  scheduler.commit(slices);
  const computed = new Map<string, number>();
  for (const { sequence, count } of slices) {
    const { client } = sequence;
    computed.set(client, (computed.get(client) ?? 0) + count);
    if (sequence.pending > 0) continue;
    sequence.learn(7);
    if (sequence.tokens.length >= sequence.limit) scheduler.remove(sequence);
  }
  return computed;
}

const isDone = ({ tokens, limit }: Sequence): boolean => tokens.length >= limit;

/** Steps until the sequence is done. */
function stepsUntilDone(scheduler: Scheduler, sequence: Sequence, maxSteps = 10_000): number {
  let steps = 0;
  for (; !isDone(sequence); ++steps) {
    if (steps === maxSteps) throw new Error(`not done after ${maxSteps} steps`);
    step(scheduler);
  }
  return steps;
}

function submitAll(scheduler: Scheduler, sequences: readonly Sequence[]): Sequence[] {
  for (const sequence of sequences) scheduler.submit(sequence);
  return [...sequences];
}

const crowd = (count: number, client: string, [prompt, tokens]: readonly [number, number]) =>
  Array.from({ length: count }, () => sequenceOf(prompt, tokens, { client }));

describe('turns of clients', () => {
  test('1,000 requests of one client delay one of another by the tokens of a swap', () => {
    const scheduler = new Scheduler(room);
    submitAll(scheduler, crowd(1000, 'many', [8, 200]));
    for (let i = 0; i < 30; ++i) step(scheduler);
    const [single] = submitAll(scheduler, [sequenceOf(8, 20, { client: 'one' })]);
    // 64 tokens at 4 sequences a step, 20 steps of its own, and a few to start.
    expect(stepsUntilDone(scheduler, single as Sequence)).toBeLessThan(64 / 4 + 20 + 4);
    expect(scheduler.counts().preemptions).toBe(1);
    // The next one waits for no swap: the other client is ahead already.
    const [next] = submitAll(scheduler, [sequenceOf(8, 20, { client: 'one' })]);
    expect(stepsUntilDone(scheduler, next as Sequence)).toBeLessThan(20 + 4);
  });

  test('in the order of arrival, the same request waits for all requests before it', () => {
    const scheduler = new Scheduler({ ...room, policy: { policy: 'fcfs', maxWait: 1000 } });
    submitAll(scheduler, crowd(100, 'many', [8, 200]));
    const [single] = submitAll(scheduler, [sequenceOf(8, 20, { client: 'one' })]);
    expect(stepsUntilDone(scheduler, single as Sequence)).toBeGreaterThan(4500);
  });

  test('long prompts of one client leave a step in between to the prompt of another', () => {
    const scheduler = new Scheduler({ ...room, blocks: 4000 });
    submitAll(scheduler, crowd(3, 'many', [2000, 2]));
    step(scheduler);
    const [single] = submitAll(scheduler, [sequenceOf(40, 1, { client: 'one' })]);
    expect(stepsUntilDone(scheduler, single as Sequence)).toBe(2);
  });

  test.each([
    [2, 4],
    [3, 4],
    [5, 4],
    [2, 1],
    [3, 1],
  ])(
    '%i clients with different requests compute equal tokens in %i slots',
    (clients, sequences) => {
      const scheduler = new Scheduler({ ...room, sequences });
      for (let i = 0; i < clients; ++i) {
        submitAll(scheduler, crowd(400, `${i}`, [4 + 3 * i, 40 + 30 * i]));
      }
      const total = new Map<string, number>();
      for (let i = 0; i < 4000; ++i) {
        for (const [client, count] of step(scheduler)) {
          total.set(client, (total.get(client) ?? 0) + count);
        }
      }
      const counts = [...total.values()];
      expect(counts).toHaveLength(clients);
      expect(Math.min(...counts) / Math.max(...counts)).toBeGreaterThan(0.85);
      // Swaps recompute few tokens: four slots compute four tokens a step.
      const { preemptions } = scheduler.counts();
      expect(preemptions).toBeLessThan(4000 / 16);
    },
  );

  test('an idle client does not accumulate turns', () => {
    const scheduler = new Scheduler({ ...room, sequences: 1 });
    const [early] = submitAll(scheduler, [sequenceOf(4, 4, { client: 'rare' })]);
    stepsUntilDone(scheduler, early as Sequence);
    submitAll(scheduler, crowd(100, 'steady', [4, 30]));
    for (let i = 0; i < 500; ++i) step(scheduler);
    submitAll(scheduler, crowd(100, 'rare', [4, 30]));
    let rare = 0;
    for (let i = 0; i < 300; ++i) rare += step(scheduler).get('rare') ?? 0;
    expect(rare).toBeGreaterThan(100);
    expect(rare).toBeLessThan(230);
  });

  test('a client gets its turn among thousands of new ones', () => {
    const scheduler = new Scheduler({ ...room, sequences: 1 });
    submitAll(scheduler, [sequenceOf(4, 10, { client: 'first' })]);
    const [waiting] = submitAll(scheduler, [sequenceOf(4, 10, { client: 'waiting' })]);
    let steps = 0;
    for (; !isDone(waiting as Sequence) && steps < 3000; ++steps) {
      const turn = { client: `new ${steps}`, priority: -5 };
      submitAll(scheduler, [sequenceOf(4, 10, turn)]);
      step(scheduler);
    }
    expect(steps).toBeLessThan(30);
  });
});

describe('priorities', () => {
  const order = (policy: PolicySettings, turns: readonly Partial<SequenceTurn>[]): number[] => {
    const scheduler = new Scheduler({ ...room, sequences: 1, policy });
    const all = submitAll(
      scheduler,
      turns.map((turn) => sequenceOf(4, 3, turn)),
    );
    const ends: number[] = [];
    while (!scheduler.isIdle) {
      step(scheduler);
      for (const [i, one] of all.entries()) if (isDone(one) && !ends.includes(i)) ends.push(i);
    }
    return ends;
  };
  const mixed = [
    { client: 'a' },
    { client: 'a', priority: 2 },
    { client: 'a', priority: -1 },
    { client: 'b', priority: 9 },
    { client: 'b', priority: 3 },
  ];

  test('order the requests of one client, and the clients take turns', () => {
    expect(order(FAIR, mixed)).toEqual([2, 4, 0, 3, 1]);
  });

  test('order all requests with the policy "priority", and none with "fcfs"', () => {
    expect(order({ ...FAIR, policy: 'priority' }, mixed)).toEqual([2, 0, 1, 4, 3]);
    expect(order({ ...FAIR, policy: 'fcfs' }, mixed)).toEqual([0, 1, 2, 3, 4]);
  });

  test('without free blocks, the least urgent sequence is preempted, not the newest', () => {
    const scheduler = new Scheduler({ ...room, blocks: 4, sharesPrefixes: false });
    const [later, sooner] = submitAll(scheduler, [
      sequenceOf(4, 10, { priority: 1 }),
      sequenceOf(4, 10, { priority: 0 }),
    ]) as [Sequence, Sequence];
    while (scheduler.counts().preemptions === 0) step(scheduler);
    expect([later.blocks.length, sooner.blocks.length]).toEqual([0, 3]);
    stepsUntilDone(scheduler, sooner);
    expect(isDone(later)).toBe(false);
    stepsUntilDone(scheduler, later);
  });

  test('without free blocks, the client with more sequences loses one', () => {
    const scheduler = new Scheduler({ ...room, blocks: 6, sharesPrefixes: false });
    const [, , newest] = submitAll(scheduler, [
      ...crowd(2, 'many', [4, 10]),
      sequenceOf(4, 10, { client: 'one', priority: 99 }),
    ]);
    while (scheduler.counts().preemptions === 0) step(scheduler);
    expect((newest as Sequence).blocks).not.toEqual([]);
  });

  test.each(['fair', 'priority'] as const)(
    'a request waits at most maxWait steps: %s',
    (policy) => {
      const wait = (maxWait: number): number => {
        const scheduler = new Scheduler({ ...room, sequences: 1, policy: { policy, maxWait } });
        const urgent = () => sequenceOf(4, 5, { priority: -3 });
        submitAll(scheduler, [urgent(), urgent()]);
        const [patient] = submitAll(scheduler, [sequenceOf(4, 5, { priority: 1 })]);
        for (let steps = 1; steps < 1000; ++steps) {
          if (scheduler.counts().waiting < 2) submitAll(scheduler, [urgent()]);
          step(scheduler);
          if (isDone(patient as Sequence)) return steps;
        }
        return 1000;
      };
      // Then the running request ends, and its own 5 steps follow.
      expect(wait(50)).toBeLessThanOrEqual(50 + 5 + 5);
      expect(wait(50)).toBeGreaterThan(50);
      expect(wait(200)).toBeLessThanOrEqual(200 + 5 + 5);
      expect(wait(5000)).toBe(1000);
    },
  );

  test('an overdue request does not precede requests of other clients', () => {
    const scheduler = new Scheduler({
      ...room,
      sequences: 1,
      policy: { policy: 'fair', maxWait: 5 },
    });
    submitAll(scheduler, crowd(200, 'many', [4, 10]));
    for (let i = 0; i < 300; ++i) step(scheduler);
    const [single] = submitAll(scheduler, [sequenceOf(4, 5, { client: 'one' })]);
    expect(stepsUntilDone(scheduler, single as Sequence)).toBeLessThan(25);
  });
});

test('ended clients leave nothing behind', () => {
  const scheduler = new Scheduler(room);
  for (let i = 0; i < 3000; ++i) {
    submitAll(scheduler, [sequenceOf(4, 2, { client: `${i}` })]);
    step(scheduler);
  }
  while (!scheduler.isIdle) step(scheduler);
  const { clients } = (scheduler as unknown as { policy: { clients: Map<string, unknown> } })
    .policy;
  expect(clients.size).toBe(0);
});
