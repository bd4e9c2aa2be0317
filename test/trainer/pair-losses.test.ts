// The losses of preference pairs and their gradients, against recorded f64 values.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { Tensor } from '../../lib/index.js';
import {
  type Divergence,
  PAIR_LOSSES,
  type PairLossName,
  splitHalves,
} from '../../lib/trainer/methods/pair-losses.js';

interface Golden {
  /** Tokens of answers by row: rows 0 and 2 are chosen, 1 and 3 rejected. */
  counts: number[];
  /** Log-probabilities of these tokens, row by row. */
  policy: number[];
  reference: number[];
  cases: Record<string, { loss: number; dlogp: number[] }>;
}
const golden = JSON.parse(
  readFileSync(join('test', 'golden', 'preferences.json'), 'utf8'),
) as Golden;

const ORDER = [0, 2, 1, 3];
const starts = golden.counts.map((_, i) => golden.counts.slice(0, i).reduce((a, b) => a + b, 0));
const rowsOf = (tokens: readonly number[]): number[] =>
  ORDER.map((row) => {
    const [start, count] = [starts[row] as number, golden.counts[row] as number];
    return tokens.slice(start, start + count).reduce((a, b) => a + b, 0);
  });
const f64 = (values: readonly number[]): Tensor => Tensor.from([...values], { dtype: 'f64' });

/** The parts of a case's name: "sigmoid+rpo_alpha=1", "robust eps=0.1", "sigmoid f=forward_kl". */
function read(name: string) {
  const [, loss = '', rest = ''] = /^(\w+)(.*)$/.exec(name) ?? [];
  const number = (key: string): number | undefined => {
    const found = new RegExp(`${key}=([\\d.]+)`).exec(rest);
    return found ? Number(found[1]) : undefined;
  };
  return {
    loss: (loss === 'cdpo' ? 'sigmoid' : loss) as PairLossName,
    beta: number('beta') ?? 0.1,
    labelSmoothing: number('eps') ?? 0,
    divergence: (/f=(\w+)/.exec(rest)?.[1] ?? 'reverse_kl') as Divergence,
    sft: number('rpo_alpha') ?? 0,
    fAlphaDivergenceCoef: 0.5,
    discopopTau: 0.05,
  };
}

test.each(Object.keys(golden.cases))('%s', (name) => {
  const { loss, sft, ...options } = read(name);
  const localTensor = f64(rowsOf(golden.policy)).requireGrad();
  const [chosen, rejected] = splitHalves(localTensor);
  const [chosenReference, rejectedReference] = splitHalves(f64(rowsOf(golden.reference)));
  const counts = ORDER.map((row) => golden.counts[row] as number);
  const [chosenTokens, rejectedTokens] = splitHalves(f64(counts));
  const sums = {
    chosen,
    rejected,
    chosenReference,
    rejectedReference,
    chosenTokens,
    rejectedTokens,
  };
  const first = PAIR_LOSSES[loss](sums, options).mean();
  const total = sft > 0 ? first.add(PAIR_LOSSES.sft(sums).mean().mul(sft)) : first;
  const expected = golden.cases[name] as Golden['cases'][string];
  expect(Math.abs(total.item() / expected.loss - 1)).toBeLessThan(1e-8);
  total.backward();
  const gradient = (localTensor.grad as Tensor).toArray() as number[];
  // All tokens of a row have the gradient of its sum.
  const byToken = golden.counts.flatMap((count, row) =>
    Array.from({ length: count }, () => gradient[ORDER.indexOf(row)] as number),
  );
  for (const [i, one] of byToken.entries()) {
    expect(one).toBeCloseTo(expected.dlogp[i] as number, 7);
  }
});

test('every loss has a recorded case', () => {
  const names = new Set(Object.keys(golden.cases).map((name) => read(name).loss));
  expect([...names].sort()).toEqual(Object.keys(PAIR_LOSSES).sort());
});
