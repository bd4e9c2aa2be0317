// The losses of policies, their gradients and the advantages, against recorded f64 values.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { Tensor } from '../../lib/index.js';
import {
  computeAdvantages,
  computeLeaveOneOut,
  type Score,
} from '../../lib/trainer/methods/advantages.js';
import {
  type Correction,
  computeRatios,
  computeSequenceLosses,
  computeSequenceRatios,
  computeTokenLosses,
  countWeight,
  estimateDivergence,
  type PolicyBatch,
  type PolicyLossName,
  sumLosses,
} from '../../lib/trainer/methods/policy-losses.js';

interface Golden {
  /** Tokens of each sequence; the lists below have them in order. */
  counts: number[];
  advantages: number[];
  policy: number[];
  reference: number[];
  old: number[];
  sampler: number[];
  kl: Record<string, number>;
  rewards: Record<string, never>;
  cases: Record<string, { loss: number; dlogp: number[] }>;
}
const golden = JSON.parse(readFileSync(join('test', 'golden', 'policies.json'), 'utf8')) as Golden;
const { counts } = golden;
const longest = Math.max(...counts);
const tokens = counts.reduce((a, b) => a + b, 0);

/** The values of tokens as [B, T]; `left` puts the padding before them. */
function padRow(values: readonly number[], left: boolean): Tensor {
  let next = 0;
  const rows = counts.flatMap((count) => {
    const row = values.slice(next, next + count);
    next += count;
    const rest = Array.from({ length: longest - count }, () => (left ? 0.7 : -0.3));
    return left ? [...rest, ...row] : [...row, ...rest];
  });
  return Tensor.from(rows, { shape: [counts.length, longest], dtype: 'f64' });
}

function batchOf(left: boolean): PolicyBatch & { logp: Tensor } {
  const ones = Array.from({ length: tokens }, () => 1);
  const mask = padRow(ones, left).eq(1).to('f64');
  return {
    logp: padRow(golden.policy, left).requireGrad(),
    old: padRow(golden.old, left),
    reference: padRow(golden.reference, left),
    sampler: padRow(golden.sampler, left),
    mask,
    advantages: Tensor.from(golden.advantages, { shape: [counts.length, 1], dtype: 'f64' }),
  };
}

/** The parts of a name such as "gspo.grpo level=sequence eps=0.01/0.01". */
function read(name: string) {
  const loss = (/\.(\w+)/.exec(name)?.[1] ?? 'luspo') as PolicyLossName;
  const number = (key: string): number | null => {
    const found = new RegExp(`${key}=([\\d.]+)`).exec(name);
    return found ? Number(found[1]) : null;
  };
  const eps = /eps=([\d.]+)\/([\d.]+)/.exec(name);
  const masked = /is=(\w+)\[([\d.]+),([\d.]+)\]/.exec(name);
  const truncated = /is=(\w+)\[max ([\d.]+)\]/.exec(name);
  const correction = ((masked ?? truncated)?.[1] ?? null) as Correction | null;
  return {
    loss,
    epsilon: eps ? Number(eps[1]) : 0.2,
    epsilonHigh: number('eps_high') ?? (eps ? Number(eps[2]) : 0.28),
    delta: number('delta'),
    level: name.includes('level=sequence') ? ('sequence' as const) : ('token' as const),
    beta: number('beta') ?? 0,
    temperatures: [1, 1.05] as const,
    correction,
    correctionRange: [
      masked ? Number(masked[2]) : 0,
      Number(masked?.[3] ?? truncated?.[2] ?? 3),
    ] as const,
  };
}

/** The gradient of the log-probabilities of tokens, in the order of the recorded lists. */
function gradientOf({ logp, mask }: PolicyBatch): number[] {
  const [all, isIn] = [(logp.grad as Tensor).toArray(), mask.toArray()] as number[][];
  return (all as number[]).filter((_, i) => isIn?.[i] === 1);
}

const near = (found: number, expected: number): void => {
  expect(Math.abs(found - expected)).toBeLessThan(1e-8 * Math.max(1, Math.abs(expected)));
};

describe.each([false, true])('padding before the tokens: %s', (left) => {
  test.each(Object.keys(golden.cases))('%s', (name) => {
    const batch = batchOf(left);
    const { loss, ...rest } = read(name);
    const options = { loss, ...rest };
    const max = 8; // Of the recorded dr_grpo.
    const count = { sequences: counts.length, tokens, max };
    const total =
      name === 'rloo'
        ? computeSequenceLosses(batch, computeSequenceRatios(batch), options.epsilon)
            .sum()
            .div(counts.length)
        : sumLosses(
            computeTokenLosses(computeRatios(batch, options.level), options),
            batch.mask,
            loss,
          ).div(countWeight(loss, count));
    const expected = golden.cases[name] as Golden['cases'][string];
    near(total.item(), expected.loss);
    total.backward();
    for (const [i, one] of gradientOf(batch).entries()) {
      near(one, expected.dlogp[i] as number);
    }
  });

  test('the estimator of the KL divergence', () => {
    const { logp, reference, mask } = batchOf(left);
    const mean = estimateDivergence(logp, reference as Tensor)
      .mul(mask)
      .sum()
      .div(tokens);
    near(mean.item(), golden.kl['k3 mean'] as number);
  });
});

test('a sequence without tokens, and a fully masked micro-batch, have no loss', () => {
  const batch = batchOf(false);
  const mask = batch.mask.mul(0);
  const options = read('grpo.grpo beta=0.1');
  for (const loss of ['grpo', 'bnpo', 'dapo', 'luspo', 'vespo'] as const) {
    const losses = computeTokenLosses(computeRatios({ ...batch, mask }, 'sequence'), {
      ...options,
      loss,
    });
    const total = sumLosses(losses, mask, loss);
    expect(total.item()).toBeCloseTo(0, 12);
  }
});

const { rewards: recorded } = golden as unknown as {
  rewards: { rewards: Score[][]; weights: number[]; group: number } & Record<string, number[]> & {
      unscorable: { rewards: Score[]; 'advantages group of 4': number[] };
    };
};
const usual = { generations: 2, weights: [1, 0.5], aggregation: 'sum_then_normalize' as const };
const { rewards: given } = recorded;

test.each([
  ['advantages group', { ...usual, scale: 'group' }],
  ['advantages batch', { ...usual, scale: 'batch' }],
  ['advantages none', { ...usual, scale: 'none' }],
  ['advantages group of 4', { ...usual, scale: 'group', generations: 4 }],
  [
    'advantages normalize_then_sum',
    { ...usual, scale: 'group', aggregation: 'normalize_then_sum' },
  ],
] as const)('%s', (name, options) => {
  const { advantages, totals } = computeAdvantages(given, options);
  for (const [i, one] of advantages.entries()) near(one, (recorded[name] as number[])[i] as number);
  for (const [i, one] of totals.entries()) {
    near(one as number, (recorded.total as number[])[i] as number);
  }
});

test('a completion without a score is left out', () => {
  const { rewards, ...expected } = recorded.unscorable;
  const { advantages, totals } = computeAdvantages(
    rewards.map((reward) => [reward]),
    { ...usual, weights: [1], generations: 4, scale: 'group' },
  );
  expect(totals[2]).toBeNull();
  for (const [i, one] of advantages.entries()) {
    near(one, expected['advantages group of 4'][i] as number);
  }
});

test.each([2, 4])('leave-one-out advantages of %d', (generations) => {
  const { totals } = computeAdvantages(given, { ...usual, scale: 'none' });
  for (const [i, one] of computeLeaveOneOut(totals, generations).entries()) {
    near(one, (recorded[`rloo group of ${generations}`] as number[])[i] as number);
  }
});
