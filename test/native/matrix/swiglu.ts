// Cases of Swiglu and its gradients: odd sizes, rows with gaps, halves of one tensor, accumulated
// gradients.
import * as kernels from '../../../lib/runtime/kernels.generated.js';
import { numel } from '../../../lib/runtime/view.js';
import { swiglu } from '../../../lib/tensor/index.js';
import type { GradientCheck, Input } from '../../autograd/check.js';
import { unary } from './functions.js';
import {
  close,
  inPlaceOperand,
  input,
  type Layout,
  type MatrixCase,
  opCase,
  output,
} from './harness.js';
import {
  aligned,
  broadcast,
  floating,
  oddSizes,
  paddedLayout,
  reversedLayout,
  unaligned,
} from './layouts.js';
import type { Mistake } from './mistake.js';

interface Setting {
  title: string;
  shape: readonly number[];
  gate?: Layout;
  up?: Layout;
  out?: Layout;
}

/** The two halves of rows of 2 H elements. */
const halves = (rows: number, half: number, lead: number) => ({
  shape: [rows, half],
  gate: { lead, strides: [2 * half, 1] },
  up: { lead: lead + half, strides: [2 * half, 1] },
});

const settings: readonly Setting[] = [
  ...oddSizes.map((n) => ({ title: 'unaligned', shape: [n], gate: unaligned, up: aligned })),
  { title: 'contiguous', shape: [17, 64] },
  { title: 'empty', shape: [3, 0, 5] },
  {
    title: 'with gaps',
    shape: [17, 33],
    gate: paddedLayout([17, 33]),
    out: paddedLayout([17, 33], 7),
  },
  {
    title: 'transposed',
    shape: [9, 40],
    gate: reversedLayout([9, 40]),
    up: reversedLayout([9, 40]),
  },
  { title: 'broadcast', shape: [6, 24], gate: broadcast([6, 24], [0]), up: aligned },
  { title: 'halves', ...halves(7, 48, 16) },
  { title: 'halves of odd rows', ...halves(5, 37, 3) },
];

const { value: silu, slope } = unary.silu;

export const cases: MatrixCase[] = floating.flatMap((dtype) =>
  settings.flatMap((setting) => {
    const { shape } = setting;
    const n = numel(shape);
    const title = `[${shape}] ${setting.title}`;
    // The value is one rounding of an f32 result.
    const check = close(dtype, 1, 'tensor');
    const forward = opCase({
      op: 'Swiglu',
      dtype,
      title,
      build: (random) => ({
        operands: {
          gate: input(dtype, shape, random.uniform(n, -12, 12), setting.gate),
          up: input(dtype, shape, random.normal(n), setting.up),
          out: output(dtype, shape, check, setting.out),
        },
        reference: (v) => ({ out: v.gate!.map((x, i) => silu(x) * v.up![i]!) }),
      }),
    });
    const backward = ([accumulateGate, accumulateUp]: readonly [boolean, boolean]): MatrixCase =>
      opCase({
        op: 'SwigluBackward',
        dtype,
        title: `${title}${accumulateGate ? ' adds to dgate' : ''}${accumulateUp ? ' adds to dup' : ''}`,
        build(random) {
          const gradient = (adds: boolean, layout?: Layout) =>
            adds
              ? inPlaceOperand(input(dtype, shape, random.normal(n), layout), check)
              : output(dtype, shape, check, layout);
          // Only inputs may have a broadcast layout.
          const writable = (layout?: Layout) =>
            layout?.strides?.includes(0) ? aligned : (layout ?? aligned);
          return {
            operands: {
              gate: input(dtype, shape, random.uniform(n, -12, 12), setting.gate),
              up: input(dtype, shape, random.normal(n), setting.up),
              dout: input(dtype, shape, random.normal(n), setting.out),
              dgate: gradient(accumulateGate, writable(setting.gate)),
              dup: gradient(accumulateUp, writable(setting.up)),
            },
            args: { accumulateGate, accumulateUp },
            reference: (v) => ({
              dgate: v.gate!.map((x, i) => {
                const old = accumulateGate ? v.dgate![i]! : 0;
                return old + v.dout![i]! * v.up![i]! * slope(x);
              }),
              dup: v.gate!.map((x, i) => (accumulateUp ? v.dup![i]! : 0) + v.dout![i]! * silu(x)),
            }),
          };
        },
      });
    const flags = [
      [false, false],
      [true, false],
      [false, true],
    ] as const;
    return [forward, ...flags.map(backward)];
  }),
);

export const mistakes: readonly Mistake[] = [
  {
    op: 'swiglu',
    what: 'shapes',
    code: 'DS_SHAPE',
    message: '[2, 4] f32',
    run: (m) => kernels.swiglu({ gate: m([2, 3]), up: m([2, 4]), out: m([2, 3]) }),
  },
  {
    op: 'swiglu_backward',
    what: 'dtypes',
    code: 'DS_DTYPE',
    message: 'bf16',
    run: (m) =>
      kernels.swigluBackward({
        gate: m([3]),
        up: m([3]),
        dout: m([3]),
        dgate: m([3]),
        dup: m([3], 'bf16'),
        accumulateGate: false,
        accumulateUp: false,
      }),
  },
];

const shapes = (...list: number[][]): Input[] => list.map((shape) => ({ shape }));
const stridedInputs = (...list: number[][]): Input[] =>
  list.map((shape) => ({ shape, strided: true }));

export const checks: readonly GradientCheck[] = [
  { op: 'swiglu', inputs: shapes([3, 5], [3, 5]), run: (x, y) => swiglu(x, y) },
  {
    op: 'swiglu',
    title: 'strided',
    inputs: stridedInputs([3, 5], [3, 5]),
    run: (x, y) => swiglu(x, y),
  },
  {
    op: 'swiglu',
    title: 'frozen gate',
    inputs: [{ shape: [3, 5], grad: false }, { shape: [3, 5] }],
    run: (x, y) => swiglu(x, y),
  },
  {
    op: 'swiglu',
    title: 'frozen up',
    inputs: [{ shape: [3, 5] }, { shape: [3, 5], grad: false }],
    run: (x, y) => swiglu(x, y),
  },
  { op: 'swiglu', title: 'of one tensor twice', inputs: shapes([7]), run: (x) => swiglu(x, x) },
  { op: 'swiglu', title: 'halves', inputs: shapes([2, 3, 10]), run: (x) => swiglu(x) },
  { op: 'swiglu', title: 'halves, strided', inputs: stridedInputs([5, 6]), run: (x) => swiglu(x) },
];
