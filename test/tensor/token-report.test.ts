// TokenReport: entropies, mean logits and accuracy of the rows of a loss, against sums in f64.
import {
  crossEntropy,
  linear,
  linearCrossEntropy,
  randn,
  scope,
  seed,
  Tensor,
} from '../../lib/tensor/index.js';
import { TokenReport } from '../../lib/tensor/ops/loss-report.js';

const [N, C, V] = [13, 8, 37];
const targets = Int32Array.from({ length: N }, (_, i) => (i % 4 === 1 ? -100 : (i * 11) % V));

function rows(): { x: Tensor; weight: Tensor; target: Tensor; logits: number[][] } {
  seed(5);
  const [x, weight] = [randn([N, C]).mul(2), randn([V, C])];
  const flat = linear(x, weight).toArray() as number[];
  const logits = Array.from({ length: N }, (_, i) => flat.slice(i * V, (i + 1) * V));
  return { x, weight, target: Tensor.from(targets), logits };
}

/** Sums over the rows that count. */
function expectedSums(logits: readonly number[][]) {
  const sums = { counted: 0, correct: 0, entropy: 0, logits: 0 };
  for (const [i, row] of logits.entries()) {
    if (targets[i] === -100) continue;
    const lse = Math.log(row.reduce((sum, x) => sum + Math.exp(x), 0));
    sums.counted += 1;
    sums.correct += Number(row.indexOf(Math.max(...row)) === targets[i]);
    sums.entropy += row.reduce((sum, x) => sum - Math.exp(x - lse) * (x - lse), 0);
    sums.logits += row.reduce((sum, x) => sum + x, 0) / V;
  }
  return sums;
}

function expectSums(report: TokenReport, expected: ReturnType<typeof expectedSums>): void {
  expect(report.read()).toMatchObject({ counted: expected.counted, correct: expected.correct });
  expect(report.entropy.item()).toBeCloseTo(expected.entropy, 3);
  expect(report.logits.item()).toBeCloseTo(expected.logits, 3);
}

test.each([
  ['all rows', {}],
  ['chunks', { chunkRows: 3 }],
  ['chunks that the backward computes again', { chunkRows: 5, recompute: true }],
  ['counted rows only', { skipIgnored: true }],
  ['a share of the classes', { classShare: { first: 0, classes: V, combine: () => {} } }],
])('a head with %s', (_, options) => {
  const { x, weight, target, logits } = rows();
  const report = new TokenReport();
  const at = weight.requireGrad();
  scope(() => linearCrossEntropy(x, at, target, { ...options, report }).backward());
  expectSums(report, expectedSums(logits));
  // Further rows are added.
  scope(() => linearCrossEntropy(x, at, target, { ...options, report }));
  expect(report.entropy.item()).toBeCloseTo(2 * expectedSums(logits).entropy, 3);
  report.dispose();
});

test('logits', () => {
  const { x, weight, target, logits } = rows();
  const report = new TokenReport();
  crossEntropy(linear(x, weight), target, { report });
  expectSums(report, expectedSums(logits));
  report.dispose();
});
