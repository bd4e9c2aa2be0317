// The losses of KTO, ORPO, CPO, SimPO, reward models and GKD with their gradients, against
// recorded f64 values: in f64, and in f32 to 1e-6.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { Tensor } from '../../lib/index.js';
import { cpoLoss } from '../../lib/trainer/methods/cpo.js';
import { gkdLoss } from '../../lib/trainer/methods/gkd.js';
import { ktoLoss } from '../../lib/trainer/methods/kto.js';
import { logOddsRatio } from '../../lib/trainer/methods/orpo.js';
import { splitHalves } from '../../lib/trainer/methods/pair-losses.js';
import { computeRewardLoss } from '../../lib/trainer/methods/reward.js';

interface Case {
  loss: number;
  dlogp: number[];
}
interface Golden {
  /** Tokens of answers by row: rows 0 and 2 are chosen, 1 and 3 rejected. */
  counts: number[];
  policy: number[];
  reference: number[];
  others: Record<string, Case>;
  reward: Record<'scores' | 'margin' | 'dscores' | 'dscores center=0.01', number[]> &
    Record<'loss' | 'loss margin' | 'loss center=0.01', number>;
  gkd: {
    V: number;
    student: number[];
    teacher: number[];
    cases: Record<string, { loss: number; dlogits: number[] }>;
  };
}
const golden = JSON.parse(
  readFileSync(join('test', 'golden', 'preferences.json'), 'utf8'),
) as Golden;

const ORDER = [0, 2, 1, 3];
const counts = ORDER.map((row) => golden.counts[row] as number);
const starts = golden.counts.map((_, i) => golden.counts.slice(0, i).reduce((a, b) => a + b, 0));
const rowsOf = (tokens: readonly number[]): number[] =>
  ORDER.map((row) => {
    const [start, count] = [starts[row] as number, golden.counts[row] as number];
    return tokens.slice(start, start + count).reduce((a, b) => a + b, 0);
  });

type Wide = 'f32' | 'f64';
const leaf = (values: readonly number[], dtype: Wide): Tensor =>
  Tensor.from([...values], { dtype }).requireGrad();

const KTO = {
  beta: 0.1,
  desirableWeight: 1,
  undesirableWeight: 1,
  reference: null,
};
const CPO = { beta: 0.1, labelSmoothing: 0, cpoAlpha: 0, simpoGamma: 0.5, alpha: 0 };

/** The loss of a case from the sums of rows [4]: two chosen, then two rejected answers. */
function lossOf(name: string, localTensor: Tensor, dtype: Wide): Tensor {
  const tensor = (values: number[]): Tensor => Tensor.from(values, { dtype });
  const [method, rest = ''] = name.split('.');
  const [loss] = rest.split(' ');
  if (method === 'kto') {
    const number = (key: string, other: number): number =>
      Number(new RegExp(`${key}=([\\d.]+)`).exec(name)?.[1] ?? other);
    const x = localTensor.sub(tensor(rowsOf(golden.reference)));
    const sums = { x, desirable: tensor([1, 1, 0, 0]), z: tensor([number('kl', 0)]).reshape([]) };
    const weights = { desirableWeight: number('wd', 1), undesirableWeight: number('wu', 1) };
    return ktoLoss(sums, { ...KTO, ...weights }).mean();
  }
  const means = localTensor.div(tensor(counts));
  if (method === 'orpo') {
    const ratio = logOddsRatio(...splitHalves(means));
    return ratio.sigmoid().log().mul(-0.1).mean();
  }
  const [chosen, rejected] = splitHalves(loss === 'simpo' || loss === 'ipo' ? means : localTensor);
  return cpoLoss({ chosen, rejected }, { ...CPO, loss: loss as 'simpo' }).mean();
}

function expectClose(got: readonly number[], expected: readonly number[], tolerance: number): void {
  const largest = Math.max(1, ...expected.map(Math.abs));
  const off = expected.map((value, i) => Math.abs((got[i] as number) - value) / largest);
  expect(Math.max(...off)).toBeLessThan(tolerance);
}

const TOLERANCE = { f64: 1e-8, f32: 1e-6 };
const names = Object.keys(golden.others);

test.each(names.flatMap((name) => [[name, 'f64'] as const, [name, 'f32'] as const]))(
  '%s in %s',
  (name, dtype) => {
    const localTensor = leaf(rowsOf(golden.policy), dtype);
    const loss = lossOf(name, localTensor, dtype);
    const expected = golden.others[name] as Case;
    expectClose([loss.item()], [expected.loss], TOLERANCE[dtype]);
    loss.backward();
    const gradient = (localTensor.grad as Tensor).toArray() as number[];
    // All tokens of a row have the gradient of its sum.
    const byToken = golden.counts.flatMap((count, row) =>
      Array.from({ length: count }, () => gradient[ORDER.indexOf(row)] as number),
    );
    expectClose(byToken, expected.dlogp, TOLERANCE[dtype]);
  },
);

test.each(['f64', 'f32'] as const)('reward models in %s', (dtype) => {
  const { scores, margin, ...wanted } = golden.reward;
  const each = [
    ['loss', null, null, 'dscores'],
    ['loss margin', null, margin, null],
    ['loss center=0.01', 0.01, null, 'dscores center=0.01'],
  ] as const;
  for (const [name, center, margins, gradient] of each) {
    const localTensor = leaf(
      ORDER.map((row) => scores[row] as number),
      dtype,
    );
    const [chosen, rejected] = splitHalves(localTensor);
    const parts = { chosen, rejected, margins: margins && Tensor.from([...margins], { dtype }) };
    const loss = computeRewardLoss(parts, { centerRewardsCoefficient: center }).mean();
    expectClose([loss.item()], [wanted[name]], TOLERANCE[dtype]);
    if (!gradient) continue;
    loss.backward();
    const got = (localTensor.grad as Tensor).toArray() as number[];
    const byRow = [0, 1, 2, 3].map((row) => got[ORDER.indexOf(row)] as number);
    expectClose(byRow, wanted[gradient], TOLERANCE[dtype]);
  }
});

test.each(
  Object.keys(golden.gkd.cases).flatMap((beta) => [[beta, 'f64'] as const, [beta, 'f32'] as const]),
)('distillation with beta %s in %s', (beta, dtype) => {
  const { V, student, teacher, cases } = golden.gkd;
  const N = student.length / V;
  const localTensor = leaf(student, dtype);
  const other = Tensor.from([...teacher], { dtype }).reshape([N, V]);
  const options = { beta: Number(beta), lossTemperature: 0.9 };
  const loss = gkdLoss(localTensor.reshape([N, V]), other, options).mean();
  const expected = cases[beta] as Golden['gkd']['cases'][string];
  expectClose([loss.item()], [expected.loss], TOLERANCE[dtype]);
  loss.backward();
  const got = ((localTensor.grad as Tensor).toArray() as number[]).slice(
    0,
    expected.dlogits.length,
  );
  expectClose(got, expected.dlogits, TOLERANCE[dtype]);
});
