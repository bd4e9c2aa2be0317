// Tests Sampler: the processors of transformers, probabilities of draws, seeds, reuse of slots, and
// errors.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { DsError } from '../../lib/errors.js';
import {
  Sampler,
  type SamplingOptions,
  SequenceSampling,
  samplingError,
} from '../../lib/inference/sampling.js';
import type { Device } from '../../lib/runtime/device.js';
import type { DType } from '../../lib/runtime/dtype.js';
import { packageRoot } from '../../lib/runtime/package-root.js';
import { scope, seed, Tensor } from '../../lib/tensor/index.js';
import type { Case } from '../support/case.js';

/** Recorded by scripts/record-sampling.py. */
interface Golden {
  vocabulary: number;
  prompt: number[];
  end: number;
  drawn: { options: SamplingOptions; scores: number[]; chances: number[] }[];
  greedy: { options: SamplingOptions; scores: number[][]; tokens: number[] }[];
}

let loaded: Golden | null = null;
function golden(): Golden {
  const file = join(packageRoot(), 'test/golden/sampling.json');
  loaded ??= JSON.parse(readFileSync(file, 'utf8')) as Golden;
  return loaded;
}

const range = (count: number): number[] => Array.from({ length: count }, (_, i) => i);

/** Runs `body` with a sampler, and asserts that all its tensors are freed. */
function samplerCase(
  name: string,
  [vocabulary, slots]: readonly [number, number],
  body: (sampler: Sampler, device: Device) => void,
): Case {
  return {
    name: `sampling: ${name}`,
    run: (device) => {
      const before = device.memory.liveBuffers;
      const sampler = new Sampler(vocabulary, device, slots);
      try {
        scope(() => body(sampler, device));
      } finally {
        sampler.dispose();
      }
      assert.equal(device.memory.liveBuffers, before);
    },
  };
}

function rowsOf(rows: readonly (readonly number[])[], device: Device, dtype: DType = 'f32') {
  const shape = [rows.length, rows[0]?.length ?? 0];
  return Tensor.from(Float32Array.from(rows.flat()), { shape, device, dtype });
}

/** One step for `slots`, with the same scores in every row. */
function step(sampler: Sampler, slots: readonly number[], scores: readonly number[]): number[] {
  return scope(() => {
    const rows = rowsOf(
      slots.map(() => scores),
      sampler.device,
    );
    return sampler.sample(rows, slots).tokens.toArray() as number[];
  });
}

/**
 * Tests counts of draws against probabilities: probability 0 is never drawn, the rest by
 * chi-square.
 */
function checkDraws(drawn: readonly number[], chances: readonly number[], label: string): void {
  const counts = chances.map(() => 0);
  for (const token of drawn) counts[token]! += 1;
  let [statistic, bins, rare, rareExpected] = [0, 0, 0, 0];
  chances.forEach((chance, token) => {
    const expected = chance * drawn.length;
    const count = counts[token]!;
    if (chance === 0) assert.equal(count, 0, `${label}: token ${token} has no chance`);
    else if (expected < 5) [rare, rareExpected] = [rare + count, rareExpected + expected];
    else [statistic, bins] = [statistic + (count - expected) ** 2 / expected, bins + 1];
  });
  assert.ok(
    Math.abs(rare - rareExpected) <= 5 * Math.sqrt(rareExpected) + 3,
    `${label}: ${rare} rare`,
  );
  // Five standard deviations above the mean of the distribution.
  const freedom = Math.max(1, bins - 1);
  assert.ok(statistic < freedom + 5 * Math.sqrt(2 * freedom), `${label}: chi-square ${statistic}`);
}

const DRAWS = 3000;

const transformersChances = golden().drawn.map(({ options, scores, chances }) =>
  samplerCase(
    `transformers' chances with ${JSON.stringify(options)}`,
    [golden().vocabulary, DRAWS],
    (sampler) => {
      const slots = range(DRAWS);
      for (const slot of slots) sampler.enter(slot, golden().prompt, { ...options, seed: slot });
      checkDraws(step(sampler, slots, scores), chances, 'a draw');
    },
  ),
);

const transformersTokens = golden().greedy.flatMap(({ options, scores, tokens }) =>
  (['f32', 'bf16'] as const).map((dtype) =>
    samplerCase(
      `transformers' greedy tokens with ${JSON.stringify(options)}, ${dtype}`,
      [golden().vocabulary, scores.length],
      (sampler, device) => {
        const slots = range(scores.length);
        const greedy = { ...options, doSample: false };
        const { prompt, end } = golden();
        for (const slot of slots) sampler.enter(slot, prompt, greedy, { ends: [end] });
        // Multiples of a half are exact in bf16.
        const sampled = sampler.sample(rowsOf(scores, device, dtype), slots);
        assert.deepEqual(sampled.tokens.toArray(), tokens);
      },
    ),
  ),
);

/** Scores that differ from step to step, as in a model. */
const scoresAt = (at: number, vocabulary: number): number[] =>
  range(vocabulary).map((token) => 2 * Math.sin(1 + 7 * at + 3.7 * token));

const rules: SamplingOptions = { temperature: 1.3, topP: 0.95, repetitionPenalty: 1.2, seed: 11 };

/** The tokens of the sequence in `slot` after `steps` steps, while `others` are sampled too. */
function run(sampler: Sampler, slot: number, others: readonly number[], steps: number): number[] {
  return range(steps).map((at) => {
    const order = [...others.slice(0, 2), slot, ...others.slice(2)];
    return step(sampler, order, scoresAt(at, sampler.vocabSize))[order.indexOf(slot)] as number;
  });
}

const sequences: readonly Case[] = [
  samplerCase('100000 draws of one distribution', [7, 1000], (sampler) => {
    const slots = range(1000);
    for (const slot of slots) sampler.enter(slot, [slot % 7], { seed: 1000 + slot });
    const scores = [0, 1, -1, 2, 0.5, -3, Number.NEGATIVE_INFINITY];
    const weights = scores.map(Math.exp);
    const sum = weights.reduce((a, b) => a + b);
    const drawn = range(100).flatMap(() => step(sampler, slots, scores));
    checkDraws(
      drawn,
      weights.map((weight) => weight / sum),
      '100000 draws',
    );
  }),
  samplerCase('a seed gives the same tokens in any slot and company', [33, 9], (sampler) => {
    sampler.enter(0, [4, 5], rules);
    const alone = run(sampler, 0, [], 12);
    sampler.enter(7, [4, 5], rules);
    for (const other of [1, 2, 3, 4])
      sampler.enter(other, [other], { seed: other, topK: 5, badWords: [[1, 2], [3]] });
    assert.deepEqual(run(sampler, 7, [4, 1, 3, 2], 12), alone);
    assert.ok(new Set(alone).size > 3);
    sampler.enter(8, [4, 5], { ...rules, seed: 12 });
    assert.notDeepEqual(run(sampler, 8, [], 12), alone);
  }),
  samplerCase('a sequence that comes back goes on as if it had stayed', [33, 4], (sampler) => {
    const options = {
      ...rules,
      badWords: [
        [3, 4],
        [8, 9, 10],
      ],
      frequencyPenalty: 0.5,
      minTokens: 9,
    };
    const sampling = new SequenceSampling('generate', options, sampler);
    const state = { ends: [5, 6] };
    sampler.enter(0, [4, 5], sampling, state);
    const stayed = run(sampler, 0, [], 14);
    sampler.enter(1, [4, 5], sampling, state);
    const before = run(sampler, 1, [], 6);
    sampler.leave(1);
    sampler.enter(3, [4, 5], sampling, { ...state, generated: before });
    const after = range(8).map(
      (i) => step(sampler, [3], scoresAt(6 + i, sampler.vocabSize))[0] as number,
    );
    assert.deepEqual([...before, ...after], stayed);
    for (const end of state.ends) assert.ok(!stayed.slice(0, 9).includes(end));
  }),
  samplerCase('samples of a request differ, and repeat', [50, 6], (sampler) => {
    const enter = (slot: number, index: number) =>
      sampler.enter(slot, [1], new SequenceSampling('generate', { seed: 3 }, sampler, index));
    for (const index of [0, 1, 2]) enter(index, index);
    const all = range(8).map((at) => step(sampler, [0, 1, 2], scoresAt(at, 50)));
    const texts = [0, 1, 2].map((index) => all.map((tokens) => tokens[index]).join());
    assert.equal(new Set(texts).size, 3);
    enter(5, 1);
    assert.equal(run(sampler, 5, [], 8).join(), texts[1]);
  }),
  samplerCase("without a seed the library's generator decides", [50, 3], (sampler) => {
    const texts = [77, 77, 78].map((value, slot) => {
      seed(value);
      sampler.enter(slot, [1]);
      return run(sampler, slot, [], 10).join();
    });
    assert.equal(texts[0], texts[1]);
    assert.notEqual(texts[0], texts[2]);
  }),
  samplerCase('tokens that end come after minTokens', [4, 1], (sampler) => {
    const scores = [9, 1, 8, 0];
    sampler.enter(0, [1], { temperature: 0, minTokens: 2 }, { ends: [0, 2] });
    assert.deepEqual(
      range(3).map(() => step(sampler, [0], scores)[0]),
      [1, 1, 0],
    );
  }),
  samplerCase('presence and frequency count the output alone', [4, 3], (sampler) => {
    const scores = [3, 2.5, 2, -9];
    sampler.enter(0, [0, 0, 0, 1], { temperature: 0, presencePenalty: 0.75 });
    assert.deepEqual(
      range(4).map(() => step(sampler, [0], scores)[0]),
      [0, 1, 0, 0],
    );
    sampler.enter(1, [0, 0, 0, 1], { temperature: 0, frequencyPenalty: 0.75 });
    assert.deepEqual(
      range(6).map(() => step(sampler, [1], scores)[0]),
      [0, 1, 0, 2, 1, 0],
    );
  }),
  samplerCase('only allowed tokens, with their bias', [6, 1], (sampler) => {
    const bias = new Map([
      [4, 3],
      [5, 99],
    ]);
    sampler.enter(0, [], { allowedTokens: [1, 4], logitBias: bias, temperature: 0 });
    assert.deepEqual(step(sampler, [0], [9, 2, 8, 7, 0, 5]), [4]);
  }),
];

const reading: readonly Case[] = (['f32', 'bf16', 'f16'] as const).map((dtype) =>
  samplerCase(`logprobs are the model's own, ${dtype}`, [5, 4], (sampler, device) => {
    const rows = [
      [1, 2, 4, 2, 0],
      [0, 0, -8, 0.5, 1],
      [3, 1, 1, 1, 1],
    ];
    sampler.enter(2, [2], { temperature: 0, logprobs: 3, repetitionPenalty: 4 });
    sampler.enter(0, [1], { temperature: 0 });
    sampler.enter(3, [1], { temperature: 0, logprobs: 0 });
    const slots = [2, 0, 3];
    const scores = rowsOf(rows, device, dtype);
    const [first, second, third] = sampler.read(sampler.sample(scores, slots));
    const sum = (row: readonly number[]) => Math.log(row.reduce((a, x) => a + Math.exp(x), 0));
    const near = (got: number | undefined, want: number) =>
      assert.ok(Math.abs((got as number) - want) < 1e-5, `${got}, not ${want}`);
    const total = sum(rows[0]!);
    assert.deepEqual(
      first?.logprob?.top.map(({ token }) => token),
      [2, 1, 3],
    );
    assert.equal(first?.token, 1);
    near(first?.logprob?.logprob, 2 - total);
    [4, 2, 2].forEach((x, k) => void near(first?.logprob?.top[k]?.logprob, x - total));
    assert.equal(first?.logprob?.logprob, first?.logprob?.top[1]?.logprob);
    assert.deepEqual(second, { token: 4, logprob: null });
    assert.deepEqual(third?.logprob?.top, []);
    near(third?.logprob?.logprob, 3 - sum(rows[2]!));
    assert.deepEqual(scores.toArray(), rows.flat(), 'scores stay as they are');
  }),
);

const { NaN: nan, NEGATIVE_INFINITY: out, POSITIVE_INFINITY: infinity } = Number;

const failing: readonly Case[] = [
  samplerCase('rows that have no next token say why, and go on', [3, 5], (sampler, device) => {
    const slots = range(5);
    for (const slot of slots) sampler.enter(slot, [1], { logprobs: 1, seed: 1 });
    sampler.leave(3);
    sampler.enter(3, [1], { allowedTokens: [0], badWords: [[0]], logprobs: 1 });
    const rows = [
      [0, nan, 1],
      [0, infinity, 1],
      [out, out, out],
      [1, 1, 1],
      [out, 2, out],
    ];
    const read = sampler.read(sampler.sample(rowsOf(rows, device), slots));
    assert.deepEqual(
      read.map(({ token }) => token),
      [-1, -1, -2, -2, 1],
    );
    assert.deepEqual(
      read.map(({ logprob }) => logprob === null),
      [true, true, true, true, false],
    );
    const errors = read.map(({ token }) => samplingError('generate', token));
    assert.deepEqual(
      errors.map((error) => error?.code),
      ['DS_NONFINITE', 'DS_NONFINITE', 'DS_ARGUMENT', 'DS_ARGUMENT', undefined],
    );
    assert.match(errors[0]?.message ?? '', /finite scores .* got NaN or \+Infinity/);
    // A row without a token does not change its sequence.
    assert.deepEqual(step(sampler, [0], [out, 0, out]), [1]);
  }),
  samplerCase('slots are what they must be', [3, 2], (sampler, device) => {
    const expectRefusal = (body: () => void, code: string, message: RegExp) =>
      assert.throws(body, (error) => {
        assert.ok(error instanceof DsError, String(error));
        assert.equal(error.code, code);
        assert.match(error.message, message);
        return true;
      });
    const one = rowsOf([[1, 2, 3]], device);
    sampler.enter(0, [1]);
    expectRefusal(() => sampler.enter(0, [1]), 'DS_ARGUMENT', /slot 0: expected a free slot/);
    expectRefusal(() => sampler.enter(2, [1]), 'DS_ARGUMENT', /a slot from 0 to 1, got 2/);
    expectRefusal(() => sampler.leave(1), 'DS_ARGUMENT', /slot 1: expected a slot in use/);
    expectRefusal(() => sampler.sample(one, [1]), 'DS_ARGUMENT', /call enter\(\) first/);
    expectRefusal(() => sampler.enter(1, [3]), 'DS_ARGUMENT', /tokens from 0 to 2, got 3/);
    expectRefusal(() => sampler.sample(one, [0, 0]), 'DS_SHAPE', /scores \[2, 3\]/);
    const two = rowsOf(
      [
        [1, 2, 3],
        [1, 2, 3],
      ],
      device,
    );
    expectRefusal(() => sampler.sample(two, [0, 0]), 'DS_ARGUMENT', /every slot once/);
    // The refused request has left no state behind.
    sampler.enter(1, [1], { temperature: 0 });
    assert.deepEqual(step(sampler, [1], [0, 5, 1]), [1]);
  }),
];

export const cases: Case[] = [
  ...transformersChances,
  ...transformersTokens,
  ...sequences,
  ...reading,
  ...failing,
];
