// Tests the scheduler with a cache that remembers the token in each slot. For any submits, aborts
// and preemptions, a sequence finds its own text, and all blocks are freed.
import { Scheduler, type SchedulerLimits, type Slice } from '../../lib/inference/scheduler.js';
import { Sequence } from '../../lib/inference/sequence.js';

const limits: SchedulerLimits = {
  tokens: 16,
  sequences: 4,
  blocks: 12,
  blockSize: 4,
  sharesPrefixes: true,
};

/** Integers from 0 to below n, equal in every run. */
function draws(seed: number): (n: number) => number {
  let state = seed;
  return (n) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * n);
  };
}

/** Simulates a step: it reads the slots of the context, and writes the new tokens. */
class Memory {
  private readonly places: number[];

  constructor(private readonly limits: SchedulerLimits) {
    this.places = Array(limits.blocks * limits.blockSize).fill(-1);
  }

  /** The next token of a text is a function of the whole text. */
  run(slices: readonly Slice[]): void {
    for (const { sequence, first, count } of slices) {
      for (let i = first; i < first + count; ++i) {
        this.places[this.place(sequence, i)] = sequence.tokens[i] as number;
      }
    }
    for (const { sequence, first, count } of slices) {
      for (let i = 0; i < first + count; ++i) {
        const held = this.places[this.place(sequence, i)];
        if (held !== sequence.tokens[i]) throw new Error(`${sequence.order}[${i}] is ${held}`);
      }
    }
  }

  private place(sequence: Sequence, i: number): number {
    const { blockSize } = this.limits;
    return (sequence.blocks[Math.floor(i / blockSize)] as number) * blockSize + (i % blockSize);
  }
}

const range = (from: number, count: number): number[] =>
  Array.from({ length: count }, (_, i) => from + i);

const formatSlices = (slices: readonly Slice[]): string[] =>
  slices.map(({ sequence, first, count }) => `${sequence.order}: ${first}+${count}`);

/** One step of all scheduled work; a sequence ends at its limit. */
function step(scheduler: Scheduler, memory: Memory): readonly Slice[] {
  const slices = scheduler.plan();
  memory.run(slices);
  scheduler.commit(slices);
  for (const { sequence } of slices) {
    if (sequence.pending > 0) continue;
    sequence.learn(sequence.tokens.reduce((sum, token) => (sum * 31 + token) % 997, 7));
    if (sequence.tokens.length >= sequence.limit) scheduler.remove(sequence);
  }
  return slices;
}

test('tokens of running sequences come first, then chunks of prompts', () => {
  const scheduler = new Scheduler({ ...limits, blocks: 100 });
  const memory = new Memory(scheduler.limits);
  scheduler.submit(new Sequence(range(0, 3), 9));
  expect(formatSlices(step(scheduler, memory))).toEqual(['0: 0+3']);
  scheduler.submit(new Sequence(range(100, 30), 40));
  scheduler.submit(new Sequence(range(200, 5), 10));
  expect(formatSlices(step(scheduler, memory))).toEqual(['0: 3+1', '1: 0+15']);
  expect(formatSlices(step(scheduler, memory))).toEqual(['0: 4+1', '1: 15+15']);
  expect(formatSlices(step(scheduler, memory))).toEqual(['0: 5+1', '1: 30+1', '2: 0+5']);
});

test('a common beginning is computed once, but for the last token of a prompt', () => {
  const scheduler = new Scheduler(limits);
  const memory = new Memory(limits);
  const prompt = range(0, 12);
  const [one, two, other, salted] = [
    new Sequence(prompt, 16),
    new Sequence(prompt, 16),
    new Sequence([...range(0, 9), 50, 51], 12),
    new Sequence(prompt, 14, 'somebody else'),
  ];
  scheduler.submit(one);
  step(scheduler, memory);
  for (const sequence of [two, other, salted]) scheduler.submit(sequence);
  expect(formatSlices(step(scheduler, memory))).toEqual(['0: 12+1', '1: 8+4', '2: 8+3', '3: 0+8']);
  expect([one.cached, two.cached, other.cached, salted.cached]).toEqual([0, 8, 8, 0]);
  expect(scheduler.counts()).toMatchObject({ prefixQueries: 12 + 12 + 11 + 12, prefixHits: 16 });
  expect(two.blocks.slice(0, 2)).toEqual(one.blocks.slice(0, 2));
});

test('free blocks are found again until they are reused, the ends of texts first', () => {
  const scheduler = new Scheduler({ ...limits, blocks: 4 });
  const memory = new Memory(scheduler.limits);
  const again = (tokens: number[]): number | null => {
    const sequence = new Sequence(tokens, tokens.length + 1);
    scheduler.submit(sequence);
    while (!scheduler.isIdle) step(scheduler, memory);
    return sequence.cached;
  };
  const text = range(0, 13);
  expect([again(text), again(text)]).toEqual([0, 12]);
  expect(again(range(500, 5))).toBe(0);
  expect(again(text)).toBe(8);
});

test('without free blocks, the newest sequence returns its blocks and continues later', () => {
  const scheduler = new Scheduler({ ...limits, blocks: 4, sharesPrefixes: false });
  const memory = new Memory(scheduler.limits);
  const [old, young] = [new Sequence(range(0, 4), 14), new Sequence(range(50, 4), 14)];
  scheduler.submit(old);
  scheduler.submit(young);
  const steps: string[][] = [];
  while (!scheduler.isIdle) steps.push(formatSlices(step(scheduler, memory)));
  expect(scheduler.counts()).toMatchObject({ preemptions: 1, blocksUsed: 0, running: 0 });
  const alone = steps.slice(steps.findIndex((slices) => slices.length === 1));
  expect(alone[0]).toEqual(['0: 8+1']);
  expect(alone.find((slices) => slices[0]?.startsWith('1:'))).toEqual(['1: 0+9']);
  expect([old.tokens.length, young.tokens.length]).toEqual([14, 14]);
});

test('the error of a request that can never fit shows the calculation', () => {
  const scheduler = new Scheduler(limits);
  expect(() => scheduler.submit(new Sequence(range(0, 40), 49))).toThrow(
    expect.objectContaining({
      code: 'DS_LIMIT',
      message: expect.stringMatching(
        /12 blocks of 4 tokens \(48 tokens\)[\s\S]*40[\s\S]*9 new ones: 13/,
      ),
    }),
  );
  expect(scheduler.isIdle).toBe(true);
});

test.each([
  ['plenty', { blocks: 60, tokens: 64, sequences: 16 }],
  ['little', { blocks: 9, tokens: 7, sequences: 5 }],
  ['nothing shared', { blocks: 9, tokens: 7, sequences: 5, sharesPrefixes: false }],
  ['blocks of one token', { blocks: 33, blockSize: 1 }],
  ['clients', { blocks: 9, tokens: 7, sequences: 3 }],
])('no block is lost in 10,000 random submits and aborts: %s', (name, input) => {
  const random = draws(name.length);
  const scheduler = new Scheduler({ ...limits, ...input });
  const memory = new Memory(scheduler.limits);
  const room = Math.min(32, scheduler.limits.blocks * scheduler.limits.blockSize);
  let live: Sequence[] = [];
  let done = 0;
  for (let i = 0; i < 10_000; ++i) {
    const start = 100 * random(3);
    const prompt = range(start, 1 + random(room - 8));
    const turn = name === 'clients' ? { client: `${random(3)}`, priority: random(3) } : {};
    const sequence = new Sequence(prompt, prompt.length + 1 + random(8), `${random(2)}`, -1, turn);
    scheduler.submit(sequence);
    live.push(sequence);
    while (random(4) > 0 || live.length > 12) {
      step(scheduler, memory);
      const ended = live.filter(({ tokens, limit }) => tokens.length >= limit);
      done += ended.length;
      live = live.filter(({ tokens, limit }) => tokens.length < limit);
      if (live.length === 0) break;
    }
    if (random(5) > 0 || live.length === 0) continue;
    const [given] = live.splice(random(live.length), 1) as [Sequence];
    scheduler.remove(given);
  }
  for (const sequence of live) scheduler.remove(sequence);
  const counts = scheduler.counts();
  expect(counts).toMatchObject({ running: 0, waiting: 0, blocksUsed: 0 });
  expect(done).toBeGreaterThan(4000);
  if (name === 'little') expect(counts.preemptions).toBeGreaterThan(100);
  if (name !== 'nothing shared') expect(counts.prefixHits).toBeGreaterThan(1000);
});
