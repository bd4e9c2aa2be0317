// Evicted prefixes in host memory: the pool, the scheduler with a simulated memory, and engines.
import { BlockPool } from '../../lib/inference/block-pool.js';
import { type BlockCopies, HostBlocks } from '../../lib/inference/host-blocks.js';
import { Scheduler, type SchedulerLimits } from '../../lib/inference/scheduler.js';
import { Sequence } from '../../lib/inference/sequence.js';
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './host-blocks.cases.js';

testOnCpu('prefixes in host memory', cases);

const limits: SchedulerLimits = {
  tokens: 16,
  sequences: 4,
  blocks: 8,
  blockSize: 4,
  sharesPrefixes: true,
};
const range = (from: number, count: number): number[] =>
  Array.from({ length: count }, (_, i) => from + i);

/** The tokens of each place on the device and in the host; a step checks those that it reads. */
class Memory implements BlockCopies {
  readonly device: number[][];
  readonly host: number[][];
  loads = 0;

  constructor({ blocks }: SchedulerLimits, slots: number) {
    this.device = Array.from({ length: blocks }, () => []);
    this.host = Array.from({ length: slots }, () => []);
  }

  save(block: number, slot: number): void {
    this.host[slot] = [...(this.device[block] as number[])];
  }

  load(slot: number, block: number): void {
    this.loads++;
    this.device[block] = [...(this.host[slot] as number[])];
  }

  step(scheduler: Scheduler): void {
    const { blockSize } = scheduler.limits;
    const slices = scheduler.plan();
    for (const { sequence, first, count } of slices) {
      for (let i = 0; i < first + count; ++i) {
        const place = this.device[sequence.blocks[Math.floor(i / blockSize)] as number] as number[];
        if (i >= first) place[i % blockSize] = sequence.tokens[i] as number;
        else if (place[i % blockSize] !== sequence.tokens[i]) throw new Error(`token ${i}`);
      }
    }
    scheduler.commit(slices);
    for (const { sequence } of slices) {
      if (sequence.pending > 0) continue;
      sequence.learn((sequence.tokens.at(-1) as number) + 1);
      if (sequence.tokens.length >= sequence.limit) scheduler.remove(sequence);
    }
  }
}

function schedulerOf(slots: number, options: Partial<SchedulerLimits> = {}) {
  const settings = { ...limits, ...options };
  const memory = new Memory(settings, slots);
  const scheduler = new Scheduler(settings, new HostBlocks(slots, memory));
  const run = (tokens: number[], salt = ''): number | null => {
    const sequence = new Sequence(tokens, tokens.length + 2, salt);
    scheduler.submit(sequence);
    while (!scheduler.isIdle) memory.step(scheduler);
    return sequence.cached;
  };
  return { memory, scheduler, run };
}

test('a pool reports findable contents before it reuses their block', () => {
  const evicted: string[] = [];
  const pool = new BlockPool(2, (key, block) => evicted.push(`${key}${block}`));
  const [a, b] = [pool.take(), pool.take()];
  pool.seal(a, 'a');
  pool.release([a, b]);
  pool.take();
  pool.take();
  expect(evicted).toEqual(['a0']);
});

test('a full host drops the contents that were used longest ago', () => {
  const host = new HostBlocks(2, { save: () => {}, load: () => {} });
  host.save('a', 0);
  host.save('b', 1);
  expect(host.load('a', 5)).toBe(true);
  host.save('c', 2);
  expect(['a', 'b', 'c'].map((key) => host.find(key))).toEqual([true, false, true]);
  expect(host.load('b', 5)).toBe(false);
  host.clear();
  expect(host.find('a')).toBe(false);
});

test('an evicted prefix is restored, also with a salt', () => {
  const { run, scheduler, memory } = schedulerOf(32);
  const text = range(0, 21);
  expect(run(text)).toBe(0);
  expect(run(range(500, 24))).toBe(0);
  expect(run(range(700, 24))).toBe(0);
  expect(run(text)).toBe(20);
  expect(scheduler.counts()).toMatchObject({ hostHits: 20, blocksUsed: 0 });
  expect(memory.loads).toBe(5);
  expect(run(range(500, 24))).toBe(20);
  expect(run(text, 'another')).toBe(0);
});

test('with too little host memory, only blocks that are there are restored', () => {
  const { run } = schedulerOf(1);
  const text = range(0, 21);
  run(text);
  run(range(500, 24));
  run(range(700, 24));
  expect([0, 4]).toContain(run(text));
});

test('forget() also drops blocks in host memory', () => {
  const { run, scheduler } = schedulerOf(32);
  run(range(0, 21));
  run(range(500, 28));
  scheduler.forget();
  expect(run(range(0, 21))).toBe(0);
});

test.each([
  ['a large host', 64],
  ['a small host', 3],
])('random texts in little memory always find their own tokens: %s', (_, slots) => {
  const { memory, scheduler } = schedulerOf(slots, { sequences: 3, blocks: 10 });
  let state = 7;
  const random = (n: number): number => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * n);
  };
  for (let i = 0; i < 1500; ++i) {
    const tokens = range(100 * random(5), 1 + random(30));
    scheduler.submit(new Sequence(tokens, tokens.length + 1 + random(6), `${random(2)}`));
    while (random(3) > 0 && !scheduler.isIdle) memory.step(scheduler);
  }
  while (!scheduler.isIdle) memory.step(scheduler);
  expect(scheduler.counts()).toMatchObject({ running: 0, waiting: 0, blocksUsed: 0 });
  expect(memory.loads).toBeGreaterThan(50);
});
