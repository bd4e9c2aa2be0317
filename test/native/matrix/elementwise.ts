// Unary, UnaryBackward, Binary, Compare, Scale and Where.
import type { DType } from '../../../lib/runtime/dtype.js';
import type { BinaryOp, CompareOp } from '../../../lib/runtime/kernels.generated.js';
import { numel } from '../../../lib/runtime/view.js';
import { roundEven, unary, unaryOps } from './functions.js';
import {
  type Check,
  close,
  exact,
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
  everyDType,
  floating,
  numeric,
  oddSizes,
  paddedLayout,
  permutedLayout,
  reversedLayout,
  sparse,
  unaligned,
} from './layouts.js';
import type { Random } from './numbers.js';

interface Setting {
  title: string;
  shape: readonly number[];
  a?: Layout;
  b?: Layout;
  out?: Layout;
}

const six = [2, 3, 2, 5, 2, 3];
const settings: readonly Setting[] = [
  ...oddSizes.map((n) => ({
    title: 'unaligned',
    shape: [n],
    a: unaligned,
    b: aligned,
    out: unaligned,
  })),
  { title: 'contiguous', shape: [17, 64] },
  { title: 'scalar', shape: [] },
  { title: 'empty', shape: [3, 0, 5] },
  {
    title: 'padded',
    shape: [17, 33],
    a: paddedLayout([17, 33]),
    b: reversedLayout([17, 33]),
    out: paddedLayout([17, 33], 7),
  },
  { title: 'row broadcast', shape: [17, 129], a: aligned, b: broadcast([17, 129], [0]) },
  { title: 'column broadcast', shape: [17, 128], a: broadcast([17, 128], [1]), b: aligned },
  {
    title: 'both broadcast',
    shape: [17, 33],
    a: broadcast([17, 33], [0]),
    b: broadcast([17, 33], [1]),
    out: sparse([17, 33]),
  },
  {
    title: 'outer of three',
    shape: [5, 7, 9],
    a: broadcast([5, 7, 9], [1]),
    b: broadcast([5, 7, 9], [0, 2]),
    out: reversedLayout([5, 7, 9]),
  },
  { title: 'scalar operand', shape: [1029], a: broadcast([1029], [0], 5), b: unaligned },
  {
    title: 'six dims',
    shape: six,
    a: permutedLayout(six, [3, 0, 5, 1, 4, 2]),
    b: broadcast(six, [1, 4]),
    out: permutedLayout(six, [5, 4, 3, 2, 1, 0]),
  },
];
/** Fewer settings for ops that depend little on the dtype. */
const few = settings.filter((_, i) => i % 4 === 1 || i === 20);

const name = (setting: Setting): string => `[${setting.shape}] ${setting.title}`;

function unaries(): MatrixCase[] {
  const cases: MatrixCase[] = [];
  for (const dtype of floating) {
    for (const op of unaryOps) {
      const { value, slope, low, high } = unary[op];
      for (const setting of op === 'gelu_tanh' ? settings : few) {
        const n = numel(setting.shape);
        // In f16 and bf16 the value is one rounding of an f32 result, so an element-wise bound
        // holds.
        const check = close(dtype, 1, dtype === 'f32' || dtype === 'f64' ? 'tensor' : 'element');
        cases.push(
          opCase({
            op: 'Unary',
            dtype,
            title: `${op} ${name(setting)}`,
            build: (random) => ({
              operands: {
                in: input(dtype, setting.shape, random.uniform(n, low, high), setting.a),
                out: output(dtype, setting.shape, check, setting.out),
              },
              args: { op },
              reference: (v) => ({ out: v.in!.map(value) }),
            }),
          }),
        );
        for (const accumulate of [false, true]) {
          cases.push(
            opCase({
              op: 'UnaryBackward',
              dtype,
              title: `${op} ${name(setting)}${accumulate ? ' accumulates' : ''}`,
              build(random) {
                const dx = accumulate
                  ? inPlaceOperand(
                      input(dtype, setting.shape, random.normal(n), setting.out),
                      close(dtype, 1, 'tensor'),
                    )
                  : output(dtype, setting.shape, close(dtype, 1, 'tensor'), setting.out);
                return {
                  operands: {
                    in: input(dtype, setting.shape, random.uniform(n, low, high), setting.a),
                    dout: input(dtype, setting.shape, random.normal(n), setting.b),
                    dx,
                  },
                  args: { op, accumulate },
                  reference: (v) => ({
                    dx: v.in!.map((x, i) => (accumulate ? v.dx![i]! : 0) + v.dout![i]! * slope(x)),
                  }),
                };
              },
            }),
          );
        }
      }
    }
  }
  return cases;
}

/** Large, special and denormal inputs of activation functions. */
function unaryCorners(): MatrixCase[] {
  const values = [
    0,
    -0,
    20,
    -20,
    87,
    -87,
    1000,
    -1000,
    Number.POSITIVE_INFINITY,
    Number.NEGATIVE_INFINITY,
    Number.NaN,
    1e-6,
    -1e-6,
    0.624,
    0.626,
    ...[0.5, -0.5, 1.5, 2.5, -2.5, -3.5, 1023.5, 1e9],
  ];
  const limits: Record<string, (x: number) => number> = {
    tanh: Math.tanh,
    sigmoid: unary.sigmoid.value,
    exp: Math.exp,
    relu: (x) => Math.max(x, 0),
    abs: Math.abs,
    sqrt: Math.sqrt,
    log: Math.log,
    floor: Math.floor,
    ceil: Math.ceil,
    round: roundEven,
    trunc: Math.trunc,
    erf: unary.erf.value,
    log1p: Math.log1p,
    expm1: Math.expm1,
  };
  return floating.flatMap((dtype) =>
    Object.entries(limits).map(([op, value]) =>
      opCase({
        op: 'Unary',
        dtype,
        title: `${op} corners`,
        build: () => ({
          operands: {
            in: input(dtype, [values.length], values),
            out: output(dtype, [values.length], close(dtype, 1, 'element')),
          },
          args: { op },
          reference: (v) => {
            const largest = dtype === 'f16' ? 65504 : dtype === 'f64' ? Number.MAX_VALUE : 3.39e38;
            const results = v.in!.map(value);
            return { out: results.map((x) => (x > largest ? Number.POSITIVE_INFINITY : x)) };
          },
        }),
      }),
    ),
  );
}

const binary: Record<BinaryOp, (a: number, b: number) => number> = {
  add: (a, b) => a + b,
  sub: (a, b) => a - b,
  mul: (a, b) => a * b,
  div: (a, b) => a / b,
  maximum: Math.max,
  minimum: Math.min,
  pow: (a, b) => a ** b,
  atan2: Math.atan2,
};

/** Inputs that are valid for every op of a dtype: positive bases, divisors away from 0. */
function operandsOf(
  random: Random,
  dtype: DType,
  op: BinaryOp,
  n: number,
): [Float64Array, Float64Array] {
  if (floating.includes(dtype)) {
    if (op === 'pow') return [random.uniform(n, 0.2, 3), random.uniform(n, -2, 2)];
    if (op === 'atan2') return [random.normal(n), random.normal(n)];
    return [random.uniform(n, -4, 4), random.uniform(n, 0.3, 3)];
  }
  const low = dtype === 'u8' ? (op === 'sub' ? 8 : 0) : -99;
  return [random.integers(n, low, 100 / (op === 'mul' ? 10 : 1)), random.integers(n, 1, 8)];
}

function binaries(): MatrixCase[] {
  const cases: MatrixCase[] = [];
  for (const dtype of numeric) {
    const isFloat = floating.includes(dtype);
    for (const op of Object.keys(binary) as BinaryOp[]) {
      const isLong = op === 'pow' || op === 'atan2';
      if (!isFloat && isLong) continue;
      for (const setting of op === 'add' ? settings : few) {
        for (const accumulate of [false, true]) {
          const n = numel(setting.shape);
          const single = isFloat && (isLong || accumulate);
          const check: Check = single ? close(dtype, isLong ? 2 : 1, 'tensor') : exact;
          cases.push(
            opCase({
              op: 'Binary',
              dtype,
              title: `${op} ${name(setting)}${accumulate ? ' accumulates' : ''}`,
              build(random) {
                const [a, b] = operandsOf(random, dtype, op, n);
                const old = isFloat ? random.normal(n) : random.integers(n, 0, 20);
                return {
                  operands: {
                    a: input(dtype, setting.shape, a, setting.a),
                    b: input(dtype, setting.shape, b, setting.b),
                    out: accumulate
                      ? inPlaceOperand(input(dtype, setting.shape, old, setting.out), check)
                      : output(dtype, setting.shape, check, setting.out),
                  },
                  args: { op, accumulate },
                  reference: (v) => ({
                    out: v.a!.map((x, i) => {
                      const result = binary[op](x, v.b![i]!);
                      // The op computes in f32 and then narrows or accumulates.
                      const inside = isFloat
                        ? dtype === 'f64'
                          ? result
                          : Math.fround(result)
                        : Math.trunc(result);
                      return inside + (accumulate ? v.out![i]! : 0);
                    }),
                  }),
                };
              },
            }),
          );
        }
      }
    }
  }
  return cases;
}

const specials = [
  Number.NaN,
  Number.POSITIVE_INFINITY,
  Number.NEGATIVE_INFINITY,
  0,
  -0,
  1,
  -1,
  2 ** -14,
];

function binaryCorners(): MatrixCase[] {
  const n = specials.length ** 2;
  const left = Array.from({ length: n }, (_, i) => specials[Math.floor(i / specials.length)]!);
  const right = Array.from({ length: n }, (_, i) => specials[i % specials.length]!);
  const floats = floating.flatMap((dtype) =>
    (['add', 'sub', 'mul', 'div', 'maximum', 'minimum'] as const).map((op) =>
      opCase({
        op: 'Binary',
        dtype,
        title: `${op} of special values`,
        build: () => ({
          operands: {
            a: input(dtype, [n], left),
            b: input(dtype, [n], right),
            out: output(dtype, [n], exact),
          },
          args: { op, accumulate: false },
          reference: (v) => ({ out: v.a!.map((x, i) => binary[op](x, v.b![i]!)) }),
        }),
      }),
    ),
  );
  const edges = [2 ** 31 - 1, -(2 ** 31), -1, 1, 7, -7];
  const pairs = edges.flatMap((a) => edges.map((b) => [a, b] as const));
  const wraps = (['add', 'sub', 'mul', 'div'] as const).map((op) =>
    opCase({
      op: 'Binary',
      dtype: 'i32',
      title: `${op} wraps around`,
      build: () => ({
        operands: {
          a: input(
            'i32',
            [pairs.length],
            pairs.map(([a]) => a),
          ),
          b: input(
            'i32',
            [pairs.length],
            pairs.map(([, b]) => b),
          ),
          out: output('i32', [pairs.length], exact),
        },
        args: { op, accumulate: false },
        reference: () => ({
          out: pairs.map(([a, b]) =>
            op === 'mul' ? Math.imul(a, b) : Math.trunc(binary[op](a, b)) | 0,
          ),
        }),
      }),
    }),
  );
  return [...floats, ...wraps];
}

const comparisons: Record<CompareOp, (a: number, b: number) => boolean> = {
  eq: (a, b) => a === b,
  ne: (a, b) => a !== b,
  lt: (a, b) => a < b,
  le: (a, b) => a <= b,
  gt: (a, b) => a > b,
  ge: (a, b) => a >= b,
};

function compares(): MatrixCase[] {
  return everyDType.flatMap((dtype) =>
    (Object.keys(comparisons) as CompareOp[]).flatMap((op) =>
      (op === 'lt' ? settings : few).map((setting) =>
        opCase({
          op: 'Compare',
          dtype,
          title: `${op} ${name(setting)}`,
          build(random) {
            const n = numel(setting.shape);
            const draw = (): Float64Array =>
              floating.includes(dtype)
                ? random.integers(n, 0, specials.length).map((k) => specials[k]!)
                : random.integers(n, 0, dtype === 'bool' ? 2 : 4);
            return {
              operands: {
                a: input(dtype, setting.shape, draw(), setting.a),
                b: input(dtype, setting.shape, draw(), setting.b),
                out: output('bool', setting.shape, exact, setting.out),
              },
              args: { op },
              reference: (v) => ({
                out: Array.from(v.a!, (x, i) => Number(comparisons[op](x, v.b![i]!))),
              }),
            };
          },
        }),
      ),
    ),
  );
}

function scales(): MatrixCase[] {
  return floating.flatMap((dtype) =>
    settings.flatMap((setting) =>
      [false, true].map((accumulate) =>
        opCase({
          op: 'Scale',
          dtype,
          title: `${name(setting)}${accumulate ? ' accumulates' : ''}`,
          build(random) {
            const n = numel(setting.shape);
            const check = close(dtype, 1, 'tensor');
            return {
              operands: {
                in: input(dtype, setting.shape, random.normal(n), setting.a),
                out: accumulate
                  ? inPlaceOperand(
                      input(dtype, setting.shape, random.normal(n), setting.out),
                      check,
                    )
                  : output(dtype, setting.shape, check, setting.out),
              },
              args: { scale: 1.7, shift: -0.3, accumulate },
              reference: (v) => ({
                out: v.in!.map((x, i) => x * 1.7 - 0.3 + (accumulate ? v.out![i]! : 0)),
              }),
            };
          },
        }),
      ),
    ),
  );
}

function wheres(): MatrixCase[] {
  return everyDType.flatMap((dtype) =>
    settings.map((setting) =>
      opCase({
        op: 'Where',
        dtype,
        title: name(setting),
        build(random) {
          const { shape } = setting;
          const n = numel(shape);
          const draw = (): Float64Array => random.integers(n, 0, dtype === 'bool' ? 2 : 100);
          return {
            operands: {
              condition: input(
                'bool',
                shape,
                random.integers(n, 0, 2),
                shape.length === 2 ? broadcast(shape, [0]) : unaligned,
              ),
              a: input(dtype, shape, draw(), setting.a),
              b: input(dtype, shape, draw(), setting.b),
              out: output(dtype, shape, exact, setting.out),
            },
            reference: (v) => ({ out: v.condition!.map((c, i) => (c ? v.a![i]! : v.b![i]!)) }),
          };
        },
      }),
    ),
  );
}

export const cases: MatrixCase[] = [
  ...unaries(),
  ...unaryCorners(),
  ...binaries(),
  ...binaryCorners(),
  ...compares(),
  ...scales(),
  ...wheres(),
];
