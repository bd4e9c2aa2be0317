// Muon's element-wise ops: momentum and sums of squares over several parameters, directions, and
// the step.
import type { DType } from '../../../lib/runtime/dtype.js';
import {
  close,
  closeSameBits,
  exact,
  inPlaceOperand,
  input,
  type MatrixCase,
  opCase,
  output,
  sameAs,
} from './harness.js';
import { aligned, oddSizes, unaligned } from './layouts.js';

const { sqrt } = Math;

const narrow = ['f32', 'f16', 'bf16'] as const;

const BETA = 0.95;

const SQUARES = 12.3;

const control = (apply: boolean) => input('f32', [4], [0.5, apply ? 1 : 0, 1, 1]);

const layoutOf = (n: number) => (n % 2 ? unaligned : aligned);

const mix = (g: number, m: number): number => BETA * m + (1 - BETA) * g * 0.5;

function momentum(dtype: DType, sizes: readonly number[], nesterov: boolean, apply: boolean) {
  const starts = [0];
  for (const size of sizes) starts.push(starts.at(-1)! + size);
  const n = starts.at(-1)!;
  return opCase({
    op: 'MuonMomentum',
    dtype,
    title: `[${sizes}] nesterov ${nesterov}${apply ? '' : ' skipped'}`,
    build(random) {
      const check = apply ? closeSameBits('f32', 1, 'tensor') : exact;
      return {
        operands: {
          momentum: inPlaceOperand(input('f32', [n], random.normal(n), layoutOf(n)), check),
          grad: input(dtype, [n], random.normal(n), layoutOf(n)),
          starts: input('i64', [starts.length], starts),
          sums: output('f64', [sizes.length], closeSameBits('f32', 1, 'element')),
          control: control(apply),
        },
        args: { beta: BETA, nesterov },
        reference({ momentum: old, grad }) {
          if (!apply) return { momentum: old, sums: sizes.map(() => 0) };
          const next = old!.map((m, i) => mix(grad![i]!, m));
          const sums = sizes.map((_, k) => {
            let sum = 0;
            for (let i = starts[k]!; i < starts[k + 1]!; ++i)
              sum += (nesterov ? mix(grad![i]!, next[i]!) : next[i]!) ** 2;
            return sum;
          });
          return { momentum: next, sums };
        },
      };
    },
  });
}

function direction(grad: DType, out: DType, n: number, nesterov: boolean, apply: boolean) {
  return opCase({
    op: 'MuonDirection',
    dtype: grad,
    title: `[${n}] to ${out} nesterov ${nesterov}${apply ? '' : ' skipped'}`,
    build(random) {
      const check = apply ? { ...close(out, 1, 'tensor'), sameBits: true } : exact;
      return {
        operands: {
          momentum: input('f32', [n], random.normal(n), layoutOf(n)),
          grad: input(grad, [n], random.normal(n), layoutOf(n)),
          squares: input('f64', [1], [SQUARES]),
          direction: output(out, [n], check, layoutOf(n)),
          control: control(apply),
        },
        args: { beta: BETA, nesterov },
        reference: ({ momentum: m, grad: g }) => ({
          direction: m!.map((x, i) => {
            if (!apply) return 0;
            return (nesterov ? mix(g![i]!, x) : x) / (sqrt(SQUARES) + 1e-7);
          }),
        }),
      };
    },
  });
}

interface Step {
  n: number;
  direction: DType;
  weight: DType | null;
  apply: boolean;
  inPlace?: boolean;
}

function applyCase({ n, direction: dtype, weight, apply, inPlace = false }: Step): MatrixCase {
  return opCase({
    op: 'MuonApply',
    dtype,
    title: `[${n}] weight ${weight}${apply ? '' : ' skipped'}${inPlace ? ' in place' : ''}`,
    build(random) {
      const check = (of: DType) => (apply ? closeSameBits(of, 1, 'tensor') : exact);
      const moved = input(dtype, [n], random.normal(n), layoutOf(n));
      return {
        operands: {
          master: inPlaceOperand(input('f32', [n], random.normal(n), layoutOf(n)), check('f32')),
          direction: inPlace ? inPlaceOperand(moved, check(dtype)) : moved,
          weight: inPlace
            ? sameAs(moved, 'direction')
            : weight && output(weight, [n], check(weight), layoutOf(n)),
          control: control(apply),
        },
        args: { lr: 0.02, weightDecay: 0.1, scale: sqrt(2) },
        reference({ master, direction: d }) {
          const p = apply
            ? master!.map((x, i) => x - 0.02 * 0.1 * x - 0.02 * sqrt(2) * d![i]!)
            : master!;
          return { master: p, weight: p, direction: p };
        },
      };
    },
  });
}

export const cases: MatrixCase[] = narrow.flatMap((dtype) => [
  ...[true, false].flatMap((nesterov) => [
    momentum(dtype, [257, 4096, 0, 5, 4097], nesterov, true),
    momentum(dtype, [1028, 64], nesterov, true),
    direction(dtype, 'f32', 1029, nesterov, true),
  ]),
  momentum(dtype, [257, 33], true, false),
  ...[[], [0], [1], [4096]].map((sizes) => momentum(dtype, sizes, true, true)),
  ...narrow.map((out) => direction(dtype, out, 258, true, true)),
  ...narrow.map((weight) => applyCase({ n: 257, direction: dtype, weight, apply: true })),
  ...oddSizes.flatMap((n) => [
    direction(dtype, dtype, n, true, true),
    applyCase({ n, direction: dtype, weight: dtype, apply: true, inPlace: true }),
  ]),
  direction(dtype, 'bf16', 40_009, true, false),
  applyCase({ n: 40_009, direction: dtype, weight: null, apply: true }),
  applyCase({ n: 130, direction: dtype, weight: dtype, apply: false }),
]);
