// The rotary embedding against its formula, by place and by given positions.
import type { DType } from '../../../lib/runtime/dtype.js';
import { contiguousStrides } from '../../../lib/runtime/view.js';
import {
  close,
  inPlaceOperand,
  input,
  type MatrixCase,
  opCase,
  output,
  sameAs,
} from './harness.js';
import { floating, paddedLayout } from './layouts.js';

const { floor } = Math;

/** Positions of tokens [b, t] in a table of `rows`. */
function ropePositions(b: number, t: number, rows: number): Float64Array {
  return Float64Array.from({ length: b * t }, (_, i) => (i * 5 + floor(i / 7)) % rows);
}

function ropes(): MatrixCase[] {
  const shapes = [
    [2, 3, 5, 8],
    [1, 17, 3, 2],
    [1, 1, 1, 64],
    [2, 33, 3, 34],
    [1, 129, 2, 128],
    [0, 3, 2, 4],
    [1, 3, 2, 0],
  ];
  return floating.flatMap((dtype) =>
    shapes.flatMap((shape) =>
      [false, true].flatMap((inverse) =>
        (['plain', 'padded', 'in place', 'positions'] as const).map((mode) =>
          opCase({
            op: 'Rope',
            dtype,
            title: `[${shape}]${inverse ? ' inverse' : ''} ${mode}`,
            build(random) {
              const [b, t, h, d] = shape as [number, number, number, number];
              const half = d / 2;
              const rows = mode === 'positions' ? t + 4 : t;
              const angles = random.uniform(rows * half, 0, 7);
              const statistic: DType = dtype === 'f64' ? 'f64' : 'f32';
              const layout =
                mode === 'padded' && d > 0
                  ? paddedLayout(shape)
                  : { strides: contiguousStrides(shape) };
              const x = input(
                dtype,
                shape,
                random.normal(shape.reduce((a, b) => a * b, 1)),
                layout,
              );
              const check = close(dtype, 1, 'tensor');
              return {
                operands: {
                  in: mode === 'in place' ? inPlaceOperand(x, check) : x,
                  cos: input(statistic, [rows, half], angles.map(Math.cos), { lead: 5 }),
                  sin: input(statistic, [rows, half], angles.map(Math.sin)),
                  positions:
                    mode === 'positions'
                      ? input('i32', [b, t], ropePositions(b, t, rows), { lead: 1 })
                      : null,
                  out: mode === 'in place' ? sameAs(x, 'in') : output(dtype, shape, check, layout),
                },
                args: { inverse },
                reference(v) {
                  const rotated = v.in!.map((value, i) => {
                    const position = i % d;
                    const token = floor(i / (h * d));
                    const angle = (v.positions?.[token] ?? token % t) * half + (position % half);
                    const sine = v.sin![angle]! * (inverse ? -1 : 1);
                    const other = position < half ? -v.in![i + half]! : v.in![i - half]!;
                    return value * v.cos![angle]! + other * sine;
                  });
                  return mode === 'in place' ? { in: rotated } : { out: rotated };
                },
              };
            },
          }),
        ),
      ),
    ),
  );
}

export const cases: MatrixCase[] = ropes();
