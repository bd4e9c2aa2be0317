// Speculation on the CPU, and its parts: lookups and lengths.
import { Scheduler } from '../../lib/inference/scheduler.js';
import { Sequence } from '../../lib/inference/sequence.js';
import { DraftLength } from '../../lib/inference/speculation/draft-length.js';
import { PromptLookup } from '../../lib/inference/speculation/prompt-lookup.js';
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './speculation.cases.js';

testOnCpu('speculation', cases);

const sizes = { min: 2, max: 4 };

test.each([
  ['the text after the last match', [1, 2, 3, 4, 9, 1, 2], 2, [3, 4]],
  ['the latest of equal matches', [1, 2, 3, 1, 2, 4, 1, 2], 1, [4]],
  ['the longest match', [5, 1, 2, 3, 7, 1, 2, 4, 5, 1, 2], 2, [3, 7]],
  ['a match of at most 4 tokens', [9, 1, 2, 3, 4, 5, 8, 1, 2, 3, 4, 6, 9, 1, 2, 3, 4], 1, [6]],
  ['a repeated text', [1, 2, 1, 2], 5, [1, 2, 1, 2, 1]],
  ['nothing without a match', [1, 2, 3, 4], 5, []],
  ['nothing for a match of one token', [1, 2, 3, 2], 5, []],
  ['nothing for a short text', [1, 1], 5, []],
])('a lookup proposes %s', (_, tokens, maxTokens, expected) => {
  expect(new PromptLookup(tokens, sizes).propose(maxTokens)).toEqual(expected);
});

test('a lookup resumes its last match after a replaced token', () => {
  const tokens = [1, 2, 3, 4, 5, 6, 7, 0, 1, 2];
  const lookup = new PromptLookup(tokens, sizes);
  expect(lookup.propose(2)).toEqual([3, 4]);
  tokens.push(3, 90);
  expect(lookup.propose(2)).toEqual([5, 6]);
  tokens.push(91);
  expect(lookup.propose(2)).toEqual([6, 7]);
  tokens.push(92);
  expect(lookup.propose(2)).toEqual([]);
  const wrong = new PromptLookup([1, 2, 3, 4, 1, 2], sizes);
  expect(wrong.propose(2)).toEqual([3, 4]);
  (wrong as unknown as { tokens: number[] }).tokens.push(9);
  expect(wrong.propose(2)).toEqual([]);
});

test('a lookup follows a growing text, as a search of the whole text does', () => {
  let state = 1;
  const draw = (n: number): number => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * n);
  };
  const tokens: number[] = [];
  const lookup = new PromptLookup(tokens, sizes);
  for (let i = 0; i < 300; ++i) {
    tokens.push(draw(4));
    let best: number[] = [];
    for (let n = sizes.max; n >= sizes.min && best.length === 0; --n) {
      const tail = tokens.slice(-n).join();
      for (let end = tokens.length - 1; end >= n && best.length === 0; --end) {
        if (tokens.slice(end - n, end).join() === tail) best = tokens.slice(end, end + 1);
      }
    }
    expect(lookup.propose(1)).toEqual(best);
  }
});

test('the length follows the acceptance and the cost of a proposal', () => {
  const lengths = (accepted: number, cost: number): number => {
    const length = new DraftLength(8);
    for (let i = 0; i < 20; ++i) length.learn(0, 8, accepted);
    return length.lengthFor(0, cost);
  };
  expect([1, 2, 4, 7, 8].map((accepted) => lengths(accepted, 0.02))).toEqual([4, 7, 8, 8, 8]);
  expect([1, 2, 4, 7, 8].map((accepted) => lengths(accepted, 0.2))).toEqual([2, 2, 4, 6, 8]);
  expect(lengths(1, 0.6)).toBe(0);
  expect(new DraftLength(8).lengthFor(0, 0.004)).toBe(8);
});

test('rejected proposals pause a sequence, each time for longer, until one is accepted', () => {
  const length = new DraftLength(4);
  const isOn = (tokens: number): boolean => length.lengthFor(tokens, 0) > 0;
  const miss = (tokens: number): void => {
    for (let i = 0; i < 4; ++i) length.learn(tokens, 1, 0);
  };
  miss(100);
  expect([100, 107, 108].map(isOn)).toEqual([false, false, true]);
  miss(200);
  expect([215, 216].map(isOn)).toEqual([false, true]);
  length.learn(300, 1, 1);
  miss(400);
  expect([407, 408].map(isOn)).toEqual([false, true]);
});

test('proposals take spare blocks and budget only, and preempt no sequence', () => {
  const scheduler = new Scheduler({
    tokens: 8,
    sequences: 4,
    blocks: 4,
    blockSize: 4,
    sharesPrefixes: false,
  });
  const [a, b] = [new Sequence([1, 2, 3], 12), new Sequence([4, 5, 6], 12)];
  for (const sequence of [a, b]) scheduler.submit(sequence);
  scheduler.commit(scheduler.plan());
  for (const sequence of [a, b]) sequence.learn(7);
  for (const sequence of [a, b]) sequence.proposals = [1, 2, 3, 4, 5, 6];
  const slices = scheduler.plan();
  expect(slices.map(({ count }) => count)).toEqual([1, 1]);
  expect(a.proposals).toEqual([]);
  scheduler.commit(slices);
  scheduler.remove(b);
  a.learn(8);
  a.proposals = [1, 2, 3, 4, 5, 6];
  const [alone] = scheduler.plan();
  expect([alone?.first, alone?.count, a.proposals.length]).toEqual([4, 7, 6]);
});

test('a rejected proposal takes back the keys and values after it', () => {
  const sequence = new Sequence([1, 2], 20);
  sequence.proposals = [3, 4, 5];
  sequence.computed = 5;
  sequence.learn(3);
  expect([sequence.computed, sequence.pending, sequence.proposals]).toEqual([5, -2, [4, 5]]);
  sequence.learn(9);
  expect([sequence.computed, sequence.pending, sequence.proposals]).toEqual([3, 1, []]);
});
