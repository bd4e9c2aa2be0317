// LayerNorm and RMSNorm with their fused residual additions, and their gradients.
import type { DType } from '../../../lib/runtime/dtype.js';
import {
  close,
  exact,
  inPlaceOperand,
  input,
  type MatrixCase,
  type Operand,
  opCase,
  output,
  sameAs,
} from './harness.js';
import { aligned, floating, oddSizes, unaligned } from './layouts.js';
import { roundTo } from './numbers.js';

const { floor, sqrt } = Math;

const EPS = 1e-5;
const sizes: readonly (readonly [number, number])[] = [
  ...oddSizes.filter((c) => c > 0).map((c) => [7, c] as const),
  [0, 17],
  [1, 64],
  [257, 24],
  [33, 768],
  [5, 1600],
  [3, 2400],
  [3, 4096],
  [2, 7200],
  [2, 8200],
];
/** More rows than the groups of threads of a large GPU take in several turns. */
const manyRows: readonly (readonly [number, number])[] = [
  [20_011, 8],
  [5003, 264],
  [700, 2400],
];

const mean = (row: Float64Array): number => row.reduce((a, b) => a + b, 0) / row.length;

/** Statistics of every row of s: RMSNorm takes no mean out. */
function statistics(
  s: Float64Array,
  n: number,
  c: number,
  centred: boolean,
): { mean: Float64Array; rstd: Float64Array } {
  const means = new Float64Array(n);
  const rstd = new Float64Array(n);
  for (let r = 0; r < n; ++r) {
    const row = s.subarray(r * c, (r + 1) * c);
    if (centred) means[r] = mean(row);
    rstd[r] = 1 / sqrt(mean(row.map((x) => (x - means[r]!) ** 2)) + EPS);
  }
  return { mean: means, rstd };
}

function forward(
  dtype: DType,
  n: number,
  c: number,
  centred: boolean,
  residual: boolean,
): MatrixCase {
  const statistic: DType = dtype === 'f64' ? 'f64' : 'f32';
  return opCase({
    op: centred ? 'LayerNorm' : 'RmsNorm',
    dtype,
    title: `[${n},${c}]${residual ? ' residual' : ''}`,
    build(random) {
      const layout = c % 2 ? unaligned : aligned;
      const operands: Record<string, Operand | null> = {
        x: input(
          dtype,
          [n, c],
          random.normal(n * c).map((x) => 2 * x + 1),
          layout,
        ),
        residual: residual ? input(dtype, [n, c], random.normal(n * c), layout) : null,
        weight: input(dtype, [c], random.uniform(c, 0.5, 1.5), unaligned),
        sum: residual ? output(dtype, [n, c], exact, layout) : null,
        out: output(dtype, [n, c], close(dtype, 2), layout),
        rstd: output(statistic, [n], close(statistic, 2), unaligned),
      };
      if (centred) {
        operands.bias = residual ? input(dtype, [c], random.normal(c)) : null;
        operands.mean = output(statistic, [n], {
          ...close(statistic),
          absolute: statistic === 'f64' ? 1e-14 : 1e-6,
        });
      }
      return {
        operands,
        args: { eps: EPS },
        reference(v) {
          const s = v.x!.map((x, i) =>
            residual ? roundTo(roundTo(x + v.residual![i]!, statistic), dtype) : x,
          );
          const stats = statistics(s, n, c, centred);
          const out = s.map((x, i) => {
            const r = floor(i / c);
            return (
              (x - stats.mean[r]!) * stats.rstd[r]! * v.weight![i % c]! +
              (v.bias ? v.bias[i % c]! : 0)
            );
          });
          return { sum: s, out, mean: stats.mean, rstd: stats.rstd };
        },
      };
    },
  });
}

interface Backward {
  centred: boolean;
  /**
   * `fused`: dsum is added; `in place`: dx is dsum itself; `only sums`: no dx; `only dx`: no sums.
   */
  mode: 'plain' | 'fused' | 'in place' | 'only sums' | 'only dx';
  accumulate: boolean;
}

function gradients(
  b: Backward,
  n: number,
  c: number,
  v: Record<string, Float64Array>,
): Record<string, Float64Array> {
  const dx = new Float64Array(n * c);
  const dweight = b.accumulate ? v.dweight!.slice() : new Float64Array(c);
  const dbias = b.accumulate && v.dbias ? v.dbias.slice() : new Float64Array(c);
  for (let r = 0; r < n; ++r) {
    const rstd = v.rstd![r]!;
    const shift = b.centred ? v.mean![r]! : 0;
    const x = v.s!.subarray(r * c, (r + 1) * c).map((s) => (s - shift) * rstd);
    const dout = v.dout!.subarray(r * c, (r + 1) * c);
    const g = dout.map((d, i) => d * v.weight![i]!);
    const along = mean(g.map((value, i) => value * x[i]!));
    const centre = b.centred ? mean(g) : 0;
    for (let i = 0; i < c; ++i) {
      const from = v.dsum ? v.dsum[r * c + i]! : 0;
      dx[r * c + i] = from + rstd * (g[i]! - centre - x[i]! * along);
      dweight[i]! += dout[i]! * x[i]!;
      dbias[i]! += dout[i]!;
    }
  }
  return b.mode === 'in place' ? { dsum: dx, dweight, dbias } : { dx, dweight, dbias };
}

function backward(dtype: DType, n: number, c: number, b: Backward): MatrixCase {
  const statistic: DType = dtype === 'f64' ? 'f64' : 'f32';
  return opCase({
    op: b.centred ? 'LayerNormBackward' : 'RmsNormBackward',
    dtype,
    title: `[${n},${c}] ${b.mode}${b.accumulate ? ' accumulates' : ''}`,
    build(random) {
      const layout = c % 2 ? unaligned : aligned;
      const s = random.normal(n * c).map((x) => roundTo(2 * x + 1, dtype));
      const stats = statistics(s, n, c, b.centred);
      const matrix = (): Operand => input(dtype, [n, c], random.normal(n * c), layout);
      // One column has no variance: rstd is 1 / sqrt(eps), and rounding is all that dx consists of.
      const noise = c === 1 ? 5e-5 : 3e-6;
      const check = { ...close(dtype, 2, 'tensor'), absolute: dtype === 'f64' ? 1e-14 : noise };
      const sums = { ...check, absolute: (dtype === 'f64' ? 1e-14 : 1e-5) * sqrt(n + 1) };
      const column = (): Operand =>
        b.accumulate
          ? inPlaceOperand(input(dtype, [c], random.normal(c), unaligned), sums)
          : output(dtype, [c], sums, unaligned);
      const dsum =
        b.mode === 'fused'
          ? matrix()
          : b.mode === 'in place'
            ? inPlaceOperand(matrix(), check)
            : null;
      const dx =
        b.mode === 'only sums'
          ? null
          : dsum && b.mode === 'in place'
            ? sameAs(dsum, 'dsum')
            : output(dtype, [n, c], check, layout);
      const operands: Record<string, Operand | null> = {
        s: input(dtype, [n, c], s, layout),
        weight: input(dtype, [c], random.uniform(c, 0.5, 1.5), unaligned),
        rstd: input(statistic, [n], stats.rstd),
        dout: matrix(),
        dsum,
        dx,
        dweight: b.mode === 'only dx' ? null : column(),
      };
      if (b.centred) {
        operands.mean = input(statistic, [n], stats.mean);
        operands.dbias = b.mode === 'only dx' ? null : column();
      }
      return {
        operands,
        args: { accumulate: b.accumulate },
        reference: (v) => gradients(b, n, c, v),
      };
    },
  });
}

const backwards: readonly Omit<Backward, 'centred'>[] = [
  { mode: 'plain', accumulate: false },
  { mode: 'fused', accumulate: true },
  { mode: 'in place', accumulate: true },
  { mode: 'in place', accumulate: false },
  { mode: 'only sums', accumulate: false },
  { mode: 'only dx', accumulate: false },
];

const ofManyRows: MatrixCase[] = (['bf16', 'f32'] as const).flatMap((dtype) =>
  manyRows.flatMap(([n, c]) => [
    forward(dtype, n, c, true, true),
    backward(dtype, n, c, { mode: 'in place', accumulate: true, centred: true }),
  ]),
);

const ofAllModes: MatrixCase[] = floating.flatMap((dtype) =>
  sizes.flatMap(([n, c]) =>
    [true, false].flatMap((centred) => [
      forward(dtype, n, c, centred, false),
      forward(dtype, n, c, centred, true),
      ...backwards.map((b) => backward(dtype, n, c, { ...b, centred })),
    ]),
  ),
);

export const cases: MatrixCase[] = [...ofAllModes, ...ofManyRows];
