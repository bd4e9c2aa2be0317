// Attention and rotary embedding against the formulas, with grouped heads, caches and packed strides.
import type { DType } from '../../../lib/runtime/dtype.js';
import { contiguousStrides } from '../../../lib/runtime/view.js';
import {
  close,
  input,
  type Layout,
  type MatrixCase,
  type Operand,
  opCase,
  output,
  sameAs,
  updated,
  type Values,
} from './harness.js';
import { floating, padded, permuted } from './layouts.js';

const { exp, floor, log, max, sqrt } = Math;

interface Sizes {
  b: number;
  h: number;
  hk: number;
  t: number;
  s: number;
  d: number;
  causal: boolean;
}

/** Rows of a contiguous [B, H, T, D] array. */
function rowOf(
  x: Float64Array,
  heads: number,
  length: number,
  d: number,
): (b: number, h: number, t: number) => Float64Array {
  return (b, h, t) => {
    const start = ((b * heads + h) * length + t) * d;
    return x.subarray(start, start + d);
  };
}

const dot = (a: Float64Array, b: Float64Array): number =>
  a.reduce((sum, x, i) => sum + x * b[i]!, 0);

/** Calls f for every query with its probabilities over the keys it sees. */
function forEachQuery(
  z: Sizes,
  v: Values,
  scale: number,
  f: (at: { b: number; h: number; t: number; kh: number }, p: Float64Array, lse: number) => void,
): void {
  const q = rowOf(v.q!, z.h, z.t, z.d);
  const k = rowOf(v.k!, z.hk, z.s, z.d);
  for (let b = 0; b < z.b; ++b) {
    for (let h = 0; h < z.h; ++h) {
      const kh = floor(h / (z.h / z.hk));
      for (let t = 0; t < z.t; ++t) {
        const seen = z.causal ? t + (z.s - z.t) + 1 : z.s;
        const scores = Float64Array.from(
          { length: seen },
          (_, s) => scale * dot(q(b, h, t), k(b, kh, s)),
        );
        const largest = scores.reduce((x, y) => max(x, y), -Infinity);
        const lse =
          seen > 0
            ? largest + log(scores.reduce((sum, x) => sum + exp(x - largest), 0))
            : -Infinity;
        f(
          { b, h, t, kh },
          scores.map((x) => exp(x - lse)),
          lse,
        );
      }
    }
  }
}

function attend(z: Sizes, v: Values, scale: number): { out: Float64Array; lse: Float64Array } {
  const out = new Float64Array(z.b * z.h * z.t * z.d);
  const lse = new Float64Array(z.b * z.h * z.t);
  const row = rowOf(out, z.h, z.t, z.d);
  const value = rowOf(v.v!, z.hk, z.s, z.d);
  forEachQuery(z, v, scale, ({ b, h, t, kh }, p, logSum) => {
    const to = row(b, h, t);
    p.forEach((weight, s) => {
      value(b, kh, s).forEach((x, i) => {
        to[i]! += weight * x;
      });
    });
    lse[(b * z.h + h) * z.t + t] = logSum;
  });
  return { out, lse };
}

function attendBackward(z: Sizes, v: Values, scale: number): Record<string, Float64Array> {
  const [dq, dk, dv] = [v.q!, v.k!, v.v!].map((x) => new Float64Array(x.length)) as [
    Float64Array,
    Float64Array,
    Float64Array,
  ];
  const rows = (x: Float64Array) => rowOf(x, z.h, z.t, z.d);
  const keys = (x: Float64Array) => rowOf(x, z.hk, z.s, z.d);
  const add = (to: Float64Array, from: Float64Array, factor: number) =>
    from.forEach((x, i) => {
      to[i]! += factor * x;
    });
  forEachQuery(z, v, scale, ({ b, h, t, kh }, p) => {
    const dout = rows(v.dout!)(b, h, t);
    const delta = dot(dout, rows(v.out!)(b, h, t));
    p.forEach((weight, s) => {
      const ds = weight * (dot(dout, keys(v.v!)(b, kh, s)) - delta) * scale;
      add(keys(dv)(b, kh, s), dout, weight);
      add(rows(dq)(b, h, t), keys(v.k!)(b, kh, s), ds);
      add(keys(dk)(b, kh, s), rows(v.q!)(b, h, t), ds);
    });
  });
  return { dq, dk, dv };
}

/** [B, H, T, D] as a slice of a packed [B, T, 3 H D] row, without the two others. */
function packed(shape: readonly number[], lead: number): Layout {
  const [, h, t, d] = shape as [number, number, number, number];
  return { lead, strides: [t * 3 * h * d, d, 3 * h * d, 1] };
}

type LayoutKind = 'contiguous' | 'packed' | 'padded' | 'heads last';

function layoutOf(kind: LayoutKind, shape: readonly number[]): Layout {
  if (kind === 'packed') return packed(shape, 16);
  if (kind === 'padded') return padded(shape, 3, 5);
  return kind === 'heads last' ? permuted(shape, [0, 2, 1, 3]) : {};
}

function attentions(dtype: DType, z: Sizes, kind: LayoutKind): MatrixCase[] {
  const statistic: DType = dtype === 'f64' ? 'f64' : 'f32';
  const shape = [z.b, z.h, z.t, z.d];
  const keyShape = [z.b, z.hk, z.s, z.d];
  const scale = 1 / sqrt(max(z.d, 1));
  const title = `B${z.b} H${z.h}/${z.hk} T${z.t} S${z.s} D${z.d}${z.causal ? ' causal' : ''} ${kind}`;
  const at = (size: readonly number[]): Layout => layoutOf(kind, size);
  const draw = (random: { normal(n: number): Float64Array }, size: readonly number[]): Operand =>
    input(dtype, size, random.normal(size.reduce((x, y) => x * y, 1)), at(size));
  const forward = opCase({
    op: 'Attention',
    dtype,
    title,
    build: (random) => ({
      operands: {
        q: draw(random, shape),
        k: draw(random, keyShape),
        v: draw(random, keyShape),
        out: output(dtype, shape, close(dtype, 2, 'tensor'), at(shape)),
        lse: output(statistic, [z.b, z.h, z.t], {
          ...close(statistic, 2, 'tensor'),
          absolute: statistic === 'f64' ? 1e-13 : 1e-5,
        }),
      },
      args: { scale, causal: z.causal },
      reference: (v) => ({ ...attend(z, v, scale) }),
    }),
  });
  const backward = opCase({
    op: 'AttentionBackward',
    dtype,
    title,
    build(random) {
      const [q, k, v] = [draw(random, shape), draw(random, keyShape), draw(random, keyShape)];
      const [vq, vk, vv] = [q, k, v].map(({ values }) => Float64Array.from(values!));
      const result = attend(z, { q: vq!, k: vk!, v: vv! }, scale);
      const check = { ...close(dtype, 3, 'tensor'), absolute: dtype === 'f64' ? 1e-14 : 1e-5 };
      return {
        operands: {
          q,
          k,
          v,
          out: input(dtype, shape, result.out, at(shape)),
          dout: draw(random, shape),
          lse: input(statistic, [z.b, z.h, z.t], result.lse),
          dq: output(dtype, shape, check, at(shape)),
          dk: output(dtype, keyShape, check, at(keyShape)),
          dv: output(dtype, keyShape, check, at(keyShape)),
        },
        args: { scale, causal: z.causal },
        reference: (values) => attendBackward(z, values, scale),
      };
    },
  });
  return [forward, backward];
}

function everyAttention(): MatrixCase[] {
  const list: [Sizes, LayoutKind][] = [];
  const add = (
    b: number,
    heads: readonly [number, number],
    lengths: readonly [number, number],
    d: number,
    kind: LayoutKind,
  ): void => {
    const [h, hk] = heads;
    const [t, s] = lengths;
    for (const causal of s >= t ? [false, true] : [false])
      list.push([{ b, h, hk, t, s, d, causal }, kind]);
  };
  for (const t of [1, 3, 17, 33, 65, 129]) add(2, [3, 3], [t, t], 8, 'packed');
  for (const d of [1, 3, 16, 17, 32, 40, 64, 80, 96, 128])
    add(1, [2, 2], [35, 35], d, 'contiguous');
  add(2, [4, 2], [17, 17], 16, 'heads last');
  add(1, [6, 1], [33, 33], 64, 'contiguous');
  add(1, [2, 2], [1, 129], 64, 'contiguous');
  add(1, [2, 1], [5, 70], 32, 'padded');
  add(1, [2, 2], [70, 5], 32, 'contiguous');
  add(1, [5, 5], [67, 67], 64, 'packed');
  add(1, [1, 1], [65, 65], 128, 'padded');
  add(0, [2, 2], [3, 3], 4, 'contiguous');
  add(2, [0, 0], [3, 3], 4, 'contiguous');
  add(1, [2, 2], [0, 5], 4, 'contiguous');
  return floating.flatMap((dtype) => list.flatMap(([z, kind]) => attentions(dtype, z, kind)));
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
        (['plain', 'padded', 'in place'] as const).map((mode) =>
          opCase({
            op: 'Rope',
            dtype,
            title: `[${shape}]${inverse ? ' inverse' : ''} ${mode}`,
            build(random) {
              const [, t, h, d] = shape as [number, number, number, number];
              const half = d / 2;
              const angles = random.uniform(t * half, 0, 7);
              const statistic: DType = dtype === 'f64' ? 'f64' : 'f32';
              const layout =
                mode === 'padded' && d > 0 ? padded(shape) : { strides: contiguousStrides(shape) };
              const x = input(
                dtype,
                shape,
                random.normal(shape.reduce((a, b) => a * b, 1)),
                layout,
              );
              const check = close(dtype, 1, 'tensor');
              return {
                operands: {
                  in: mode === 'in place' ? updated(x, check) : x,
                  cos: input(statistic, [t, half], angles.map(Math.cos), { lead: 5 }),
                  sin: input(statistic, [t, half], angles.map(Math.sin)),
                  out: mode === 'in place' ? sameAs(x, 'in') : output(dtype, shape, check, layout),
                },
                args: { inverse },
                reference(v) {
                  const rotated = v.in!.map((value, i) => {
                    const position = i % d;
                    const angle = (floor(i / (h * d)) % t) * half + (position % half);
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

export const cases: MatrixCase[] = [...everyAttention(), ...ropes()];
