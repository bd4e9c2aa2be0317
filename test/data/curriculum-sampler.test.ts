// Tests the samples that the steps of a curriculum draw, against difficulties and pools computed by
// hand.
import { createHash } from 'node:crypto';

import { fixedDiscrete, fixedRoot } from '../../lib/data/curriculum-schedule.js';
import { data } from '../../lib/index.js';

const { CurriculumSampler } = data;
type Options = data.CurriculumSamplerOptions;

/** 40 samples: 0, 10, 20 and 30 have value 1; 1, 11, 21 and 31 have value 2; and so on. */
const VALUES = Int32Array.from({ length: 40 }, (_, i) => 1 + (i % 10));
const BATCH = 8;
const PER_EPOCH = 5;

/** 2 + 0.8 step: 2.8, 3.6, 4.4, 5.2, 6, 6.8, 7.6, 8.4, 9.2, 10. */
const growing: data.CurriculumMetric = {
  values: VALUES,
  maxDifficulty: 10,
  schedule: fixedRoot({ min: 2, max: 10, totalSteps: 10 }),
};
const GROWN = [2, 3, 4, 5, 6, 6, 7, 8, 9, 10, 10, 10];

const makeSampler = (more: Partial<Options> = {}, samples = VALUES.length) =>
  new CurriculumSampler(samples, { batchSize: BATCH, metrics: { growing }, ...more });

/** The batches of so many steps, over epochs. */
function batchesOf(sampler: data.CurriculumSampler, steps: number, size = BATCH): number[][] {
  const all: number[] = [];
  for (let epoch = 0; all.length < steps * size; ++epoch) {
    sampler.setEpoch(epoch);
    all.push(...sampler);
  }
  return Array.from({ length: steps }, (_, i) => all.slice(i * size, (i + 1) * size));
}

const sort = (list: Iterable<number>): number[] => [...list].sort((a, b) => a - b);

test('steps draw samples within their difficulty, as in the table', () => {
  const sampler = makeSampler();
  const asked = GROWN.map((_, i) => sampler.difficulties(i + 1).growing);
  expect(asked).toEqual(GROWN);
  expect(sampler.difficulties(3)).toEqual({ growing: 4 });
  expect(sampler.length).toBe(PER_EPOCH * BATCH);
  const batches = batchesOf(sampler, 60);
  for (const [i, batch] of batches.entries()) {
    const maxDifficulty = GROWN[i] ?? 10;
    expect(Math.max(...batch.map((sample) => VALUES[sample] as number))).toBeLessThanOrEqual(
      maxDifficulty,
    );
  }
  const late = new Set(batches.slice(10).flat());
  expect(late.size).toBe(VALUES.length);
});

test('samples that become available together are all drawn before one repeats', () => {
  const batches = batchesOf(makeSampler(), 200);
  const times = new Uint32Array(VALUES.length);
  const orders = new Set<string>();
  for (const batch of batches) {
    for (const sample of batch) times[sample] = (times[sample] as number) + 1;
    // Values 1 and 2 are available at the first step; each later value forms its own cluster.
    for (const cluster of [[1, 2], [3], [4], [10]]) {
      const came = times.filter((_, i) => cluster.includes(VALUES[i] as number));
      expect(Math.max(...came) - Math.min(...came)).toBeLessThanOrEqual(1);
    }
    const easy = batch.filter((sample) => (VALUES[sample] as number) <= 2);
    if (easy.length > 1) orders.add(`${easy}`);
  }
  expect(orders.size).toBeGreaterThan(4);
});

test('each batch has samples of a cluster in proportion to its size, rounded up or down', () => {
  const ease = fixedDiscrete([2, 10], [3]);
  const sampler = makeSampler({
    metrics: { ease: { values: VALUES, maxDifficulty: 10, schedule: ease } },
  });
  const late = batchesOf(sampler, 503).slice(3);
  // 8 of 40 samples are easy: 1.6 of 8 draws.
  const easy = late.map((batch) => batch.filter((i) => (VALUES[i] as number) <= 2).length);
  expect(new Set(easy)).toEqual(new Set([1, 2]));
  expect(easy.reduce((a, b) => a + b) / easy.length).toBeCloseTo(1.6, 1);
});

test('percentiles count the easiest samples first, and equal samples in their order', () => {
  // 45 samples: each of 10 percentiles has 4, rounded down, and the last one has the rest.
  const values = Float64Array.from({ length: 45 }, (_, i) => 100 - Math.floor(i / 3));
  const schedule = fixedDiscrete([1, 3, 10], [2, 4]);
  const metric = { values, difficultyType: 'percentile', maxDifficulty: 10, schedule } as const;
  const sampler = new CurriculumSampler(45, { batchSize: 4, metrics: { metric } });
  const batches = batchesOf(sampler, 60, 4);
  const pools = [batches.slice(0, 2), batches.slice(2, 4), batches.slice(4)].map((part) =>
    sort(new Set(part.flat())),
  );
  // From the end: 42, 43, 44 are the easiest, then 39, 40, 41.
  expect(pools[0]).toEqual([39, 42, 43, 44]);
  const twelve = Array.from({ length: 12 }, (_, i) => 33 + i);
  expect(pools[1]?.every((sample) => twelve.includes(sample))).toBe(true);
  expect(pools[2]).toEqual(Array.from({ length: 45 }, (_, i) => i));
});

test('a sample must be within the difficulty of every metric, each with its own schedule', () => {
  const parity = {
    values: VALUES.map((_, i) => i % 2),
    maxDifficulty: 1,
    schedule: fixedDiscrete([0, 1], [4]),
  };
  const alone = { maxDifficulty: 64, schedule: () => 8, clusteringType: 'single_cluster' } as const;
  const sampler = makeSampler({ metrics: { growing, parity, alone } });
  const batches = batchesOf(sampler, 40);
  for (const [i, batch] of batches.entries()) {
    const within = [...VALUES].flatMap((value, sample) =>
      value <= (GROWN[i] ?? 10) && sample % 2 <= (i < 4 ? 0 : 1) ? [sample] : [],
    );
    for (const sample of batch) expect(within).toContain(sample);
  }
  expect(sampler.difficulties(5)).toEqual({ growing: 6, parity: 1, alone: 8 });
  expect(new Set(batches.slice(10).flat()).size).toBe(40);
  const fullSampler = makeSampler({ metrics: { alone } });
  expect(sort(fullSampler)).toEqual(Array.from({ length: 40 }, (_, i) => i));
});

test.each([1, 2, 3])(
  'exactly the samples within the difficulties of %i metrics are drawn',
  (count) => {
    const samples = 200;
    // Integers, fractions and negative values are sorted in different ways.
    const units = [1, 0.25, -3];
    const metrics = units.slice(0, count).map((unit, m) => {
      const values = Float64Array.from(
        { length: samples },
        (_, i) => unit * ((i * (7 + 4 * m)) % 23),
      );
      const [easiest, hardest] = [Math.min(...values), Math.max(...values)];
      const schedule = fixedDiscrete([(easiest + hardest) / 2, hardest], [40 + 20 * m]);
      return { values, schedule, maxDifficulty: hardest };
    });
    const named = Object.fromEntries(metrics.map((metric, m) => [`m${m}`, metric]));
    const sampler = new CurriculumSampler(samples, { metrics: named, batchSize: 10, seed: 2 });
    const batches = batchesOf(sampler, 160, 10);
    const within = (step: number): number[] =>
      Array.from({ length: samples }, (_, i) => i).filter((i) =>
        metrics.every(({ values, schedule }) => (values[i] as number) <= schedule(step)),
      );
    for (const [from, end] of [
      [0, 40],
      [40, 60],
      [60, 80],
      [80, 160],
    ] as const) {
      const pool = new Set(within(from + 1));
      const drawn = new Set(batches.slice(from, end).flat());
      for (const sample of drawn) expect(pool).toContain(sample);
      if (end - from >= 40) expect(sort(drawn)).toEqual(sort(pool));
    }
  },
);

test.each([
  { batchSize: 7, rise: 1, seed: 3, digest: 'bb6b8d5b3c160bd9' },
  { batchSize: 64, rise: 10, seed: 2 ** 40 + 5, digest: 'c57e05776f4f2c8e' },
  { batchSize: 300, rise: 1, seed: 0, digest: '260c66fb584402c2' },
])(
  'the draws of batches of $batchSize equal the recorded draws of the first release',
  ({ digest, rise, ...more }) => {
    const metricOf = (factor: number, schedule: (step: number) => number) => ({
      values: Float64Array.from({ length: 1000 }, (_, i) => (i * factor) % 50),
      schedule,
      maxDifficulty: 49,
    });
    const metrics = {
      a: metricOf(7919, (step) => 4 + rise * step),
      b: metricOf(31, (step) => 30 + step),
    };
    const sampler = makeSampler({ ...more, metrics }, 1000);
    const hash = createHash('sha256');
    for (const epoch of [0, 1, 5]) {
      sampler.setEpoch(epoch);
      hash.update(sampler.order(0));
    }
    expect(hash.digest('hex').slice(0, 16)).toBe(digest);
  },
);

test('two ranks draw as one, positions can be restored, and the seed changes the order', () => {
  const one = makeSampler({ seed: 5 });
  const two = [0, 1].map((rank) => makeSampler({ seed: 5, rank, worldSize: 2 }));
  for (const epoch of [0, 1, 2]) {
    for (const sampler of [one, ...two]) sampler.setEpoch(epoch);
    const fullValues = [...one];
    const halves = two.map((sampler) => [...sampler]);
    expect(halves.map(({ length }) => length)).toEqual([20, 20]);
    expect(fullValues).toEqual(fullValues.map((_, i) => halves[i % 2]?.[i >> 1]));
    for (const served of [0, 4, 8, 20, 40]) {
      expect([...one.order(served)]).toEqual(fullValues.slice(served));
    }
    expect(batchesOf(makeSampler({ seed: 6 }), 3)).not.toEqual(
      batchesOf(makeSampler({ seed: 5 }), 3),
    );
  }
});

test('a resumed loader continues without a difference, also on another number of ranks', () => {
  const dataset = { length: 40, get: (index: number) => index };
  const loaderOf = (rank = 0, worldSize = 1, epochs = 1000) => {
    const sampler = makeSampler({ rank, worldSize, seed: 3, epochs });
    const collate = (samples: number[]) => samples;
    return new data.DataLoader(dataset, { batchSize: 4 / worldSize, sampler, collate });
  };
  const epochOf = (loader: Iterable<number[]>): number[][] => [...loader];
  const never = loaderOf();
  const expected = [epochOf(never), epochOf(never), epochOf(never)];
  for (const stop of [0, 1, 3, 9, 10]) {
    const first = loaderOf();
    epochOf(first);
    const before: number[][] = [];
    for (const batch of first) {
      if (before.length === stop) break;
      before.push(batch);
    }
    // The batch that was taken and dropped counts as served.
    if (stop < 10) before.push(expected[1]?.[stop] as number[]);
    const state = JSON.parse(JSON.stringify(first.stateDict()));
    const second = loaderOf();
    second.loadStateDict(state);
    const rest = before.length === 10 ? [] : epochOf(second);
    expect([...before, ...rest]).toEqual(expected[1]);
    expect(epochOf(second)).toEqual(expected[2]);
    const ranks = [0, 1].map((rank) => loaderOf(rank, 2));
    for (const loader of ranks) loader.loadStateDict(state);
    const halves = ranks.map((loader) => (before.length === 10 ? [] : epochOf(loader)));
    const met = (halves[0] ?? []).map((batch, i) => sort([...batch, ...(halves[1]?.[i] ?? [])]));
    expect(met).toEqual((expected[1] ?? []).slice(before.length).map(sort));
  }
});

test('the last epoch is followed by an error, not by an endless loop', () => {
  const dataset = { length: 40, get: (index: number) => index };
  const loader = new data.DataLoader(dataset, {
    batchSize: 8,
    sampler: makeSampler({ epochs: 2 }),
  });
  const all = [...loader, ...loader];
  expect(all).toHaveLength(10);
  for (const batch of all) batch.dispose();
  expect(() => [...loader]).toThrow('the end of the CurriculumSampler');
  const state = loader.stateDict();
  loader.loadStateDict(state); // The state of a finished run can be loaded.
  expect(loader.stateDict()).toEqual(state);
});

test('schedules may be functions set later; the first maximum of the difficulty is kept', () => {
  const sampler = makeSampler();
  expect(sampler.difficulties(4)).toEqual({ growing: 5 });
  const before = [...sampler];
  sampler.setSchedules({ growing: (step) => (step < 3 ? 1 : step < 5 ? 12 : 4) });
  const asked = [1, 2, 3, 5, 9].map((step) => sampler.difficulties(step).growing);
  expect(asked).toEqual([1, 1, 12, 12, 12]);
  expect([...sampler]).not.toEqual(before);
  const falls = makeSampler({
    metrics: { falls: { ...growing, schedule: (step) => 5 - step } },
  });
  expect(() => [...falls]).toThrow(
    /falls schedule\(2\): expected at least 4, the difficulty of the previous step, got 3/,
  );
  expect(() => sampler.setSchedules({ other: () => 1 })).toThrow('one of the metrics "growing"');
  expect(() => sampler.setSchedules({ growing: 3 as never })).toThrow('a function, got 3');
});

test('a step without available samples reports the minimum of each metric', () => {
  const at = (schedule: () => number, more: object = {}): Partial<Options> => ({
    metrics: {
      growing,
      hard: { ...growing, values: VALUES.map((v) => v + 20), schedule, ...more },
    },
  });
  expect(() => [...makeSampler(at(() => 9))]).toThrow(
    'step 1: expected samples within the difficulties "growing" 2, "hard" 9, got none of 40; the easiest samples have "growing" 1, "hard" 21. Raise the min_difficulty of these metrics.',
  );
  expect(() => [...makeSampler(at(() => 0, { difficultyType: 'percentile' }))]).toThrow('"hard" 1');
});

test.each<[string, Partial<Options> | object, RegExp]>([
  ['no metric', { metrics: {} }, /an object with at least one metric, by name, got an object/],
  ['a list', { metrics: [growing] }, /at least one metric/],
  ['an unknown option', { metric: 1 }, /"metric"/],
  ['an unknown key', { metrics: { a: { ...growing, min: 1 } } }, /"min"/],
  [
    'no schedule',
    { metrics: { a: { ...growing, schedule: undefined } } },
    /a schedule: .* function/,
  ],
  [
    'too few values',
    { metrics: { a: { ...growing, values: [1] } } },
    /40 samples, got a list of 1/,
  ],
  ['no number', { metrics: { a: { ...growing, values: [Number.NaN] } } }, /got NaN at 0/],
  [
    'no values',
    { metrics: { a: { ...growing, values: undefined } } },
    /indexToSamplePath: expected a path/,
  ],
  [
    'a type',
    { metrics: { a: { ...growing, difficultyType: 'rank' } } },
    /"value", "percentile", got "rank"/,
  ],
  [
    'a clustering',
    { metrics: { a: { ...growing, clusteringType: 'x' } } },
    /"single_cluster", got "x"/,
  ],
  [
    'more percentiles than samples',
    { metrics: { a: { ...growing, difficultyType: 'percentile', maxDifficulty: 100 } } },
    /at most 40, the number of samples, for percentiles, got 100/,
  ],
  ['an odd batch', { batchSize: 9, worldSize: 2 }, /a multiple of the world size 2, got 9/],
  ['a rank', { rank: 1 }, /a rank below the world size 1/],
  ['a seed', { seed: -1 }, /seed/],
  ['no epoch', { epochs: 0 }, /epochs/],
])('%s is refused', (_, more, message) => {
  expect(() => makeSampler(more as Partial<Options>)).toThrow(message);
});

test('states of other orders and steps are refused', () => {
  const state = makeSampler().stateDict();
  expect(() => makeSampler({ batchSize: 4 }).loadStateDict(state)).toThrow(
    'a position in steps of 4 samples, got a position in steps of 8. Resume with the same train_batch_size',
  );
  const other = new data.RandomSampler(40).stateDict();
  expect(() => makeSampler().loadStateDict(other)).toThrow(
    'got the position of another kind of sampler',
  );
  expect(() => fixedRoot({ min: 1, max: 2 } as never)).toThrow('totalSteps');
  expect(() => fixedRoot({ min: 2, max: 1, totalSteps: 1 })).toThrow('max');
  expect(() => fixedDiscrete([1, 2], [1, 2])).toThrow('3 difficulties, one more than');
});
