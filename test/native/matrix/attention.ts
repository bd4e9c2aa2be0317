// Attention against the formulas, with grouped heads, caches and packed strides.
import type { DType } from '../../../lib/runtime/dtype.js';
import { contiguousStrides } from '../../../lib/runtime/view.js';
import { layoutWords } from './block-layouts.js';
import {
  close,
  input,
  type Layout,
  type MatrixCase,
  type Operand,
  opCase,
  output,
} from './harness.js';
import { broadcast, floating, paddedLayout, permutedLayout } from './layouts.js';
import { type Random, roundTo } from './numbers.js';

const { floor, max, sqrt } = Math;

import {
  attend,
  attendBackward,
  documentRows,
  type Filter,
  keepAll,
  type Sizes,
} from './attention-reference.js';

/** [B, H, T, D] as a slice of a packed [B, T, 3 H D] row, without the two others. */
function packedLayout(shape: readonly number[], lead: number): Layout {
  const [, h, t, d] = shape as [number, number, number, number];
  return { lead, strides: [t * 3 * h * d, d, 3 * h * d, 1] };
}

type LayoutKind = 'contiguous' | 'packed' | 'padded' | 'heads last';

function layoutOf(kind: LayoutKind, shape: readonly number[]): Layout {
  if (kind === 'packed') return packedLayout(shape, 16);
  if (kind === 'padded') return paddedLayout(shape, 3, 5);
  return kind === 'heads last' ? permutedLayout(shape, [0, 2, 1, 3]) : {};
}

/**
 * Bools or numbers that hide about a third of the keys, some rows, and all keys of the second
 * query.
 */
function maskValues(
  as: string,
  shape: readonly number[],
  repeats: readonly number[],
  random: Random,
): Float64Array {
  const kept = shape.map((size, d) => (repeats.includes(d) ? 1 : size));
  const drawn = random.normal(kept.reduce((x, y) => x * y, 1));
  const strides = contiguousStrides(kept).map((stride, d) => (repeats.includes(d) ? 0 : stride));
  return Float64Array.from({ length: shape.reduce((x, y) => x * y, 1) }, (_, i) => {
    let [rest, place] = [i, 0];
    const index = [...shape];
    for (let d = shape.length - 1; d >= 0; --d) {
      index[d] = rest % shape[d]!;
      rest = floor(rest / shape[d]!);
      place += index[d]! * strides[d]!;
    }
    const row = shape.length === 4 && !repeats.includes(2) ? index[2] : -1;
    const hidden = row === 1 || drawn[place]! > 0.4;
    if (as === 'bool') return hidden ? 0 : 1;
    return hidden ? (place % 2 ? -Infinity : -3e38) : 2 * drawn[place]!;
  });
}

/** The operands that hide keys; null for a mask that the filter leaves out. */
function filterOperands(dtype: DType, z: Sizes, random: Random): Record<string, Operand | null> {
  const { mask, keyMask, lengths, documents, layout } = z.filter ?? {};
  const dtypeOf = (as: 'bool' | 'f32' | 'like q'): DType => (as === 'like q' ? dtype : as);
  /** Rounded to the dtype, because the lse for the backward is computed from these values. */
  const storeMask = (values: Float64Array, as: 'bool' | 'f32' | 'like q'): Float64Array =>
    values.map((x) => roundTo(x, dtypeOf(as)));
  const shape = [z.b, z.h, z.t, z.s];
  const operands: Record<string, Operand | null> = {
    mask: null,
    keyMask: null,
    keyLengths: null,
    queryDocuments: null,
    keyDocuments: null,
    layout: null,
  };
  if (layout) {
    const heads = layout.shared ? 1 : z.h;
    const blocks = floor((z.t + layout.block - 1) / layout.block);
    const shape = [heads, blocks, floor((blocks + 31) / 32)];
    operands.layout = input('i32', shape, layoutWords(heads, blocks));
  }
  if (mask) {
    const values = maskValues(mask.as, shape, mask.repeats, random);
    const layout = mask.transposed
      ? permutedLayout(shape, [0, 1, 3, 2])
      : broadcast(shape, mask.repeats, 5);
    operands.mask = input(dtypeOf(mask.as), shape, storeMask(values, mask.as), layout);
  }
  if (keyMask) {
    const values = maskValues(keyMask, [z.b, z.s], [], random);
    const layout = paddedLayout([z.b, z.s]);
    operands.keyMask = input(dtypeOf(keyMask), [z.b, z.s], storeMask(values, keyMask), layout);
  }
  if (lengths) operands.keyLengths = input('i32', [z.b], lengths);
  if (documents) {
    const [rows, keys] = [
      [z.b, z.t],
      [z.b, z.s],
    ] as const;
    const queries = documentRows(documents, z.b, z.t, z.s);
    operands.queryDocuments = input('i32', rows, queries, permutedLayout(rows, [1, 0]));
    operands.keyDocuments = input('i32', keys, documentRows(documents, z.b, z.s, z.t), { lead: 3 });
  }
  return operands;
}

const argsOf = ({ causal, filter }: Sizes, scale: number): Record<string, unknown> => ({
  scale,
  causal,
  window: filter?.window ?? 0,
  dropout: filter?.dropout ?? keepAll,
  cap: filter?.cap ?? 0,
  block: filter?.layout?.block ?? 0,
});

/** Forward and backward of one attention. */
export function attentions(dtype: DType, z: Sizes, kind: LayoutKind): MatrixCase[] {
  const statistic: DType = dtype === 'f64' ? 'f64' : 'f32';
  const shape = [z.b, z.h, z.t, z.d];
  const keyShape = [z.b, z.hk, z.s, z.d];
  const scale = 1 / sqrt(max(z.d, 1));
  const title = `B${z.b} H${z.h}/${z.hk} T${z.t} S${z.s} D${z.d}${z.causal ? ' causal' : ''} ${z.filter?.title ?? kind}`;
  const at = (size: readonly number[]): Layout => layoutOf(kind, size);
  const draw = (random: { normal(n: number): Float64Array }, size: readonly number[]): Operand =>
    input(dtype, size, random.normal(size.reduce((x, y) => x * y, 1)), at(size));
  /** Keys or values; rows behind a length are NaN, because no kernel may use them. */
  const drawKeys = (random: { normal(n: number): Float64Array }): Operand => {
    const values = random.normal(keyShape.reduce((x, y) => x * y, 1));
    z.filter?.lengths?.forEach((length, b) => {
      const from = max(0, length);
      for (let head = b * z.hk; from < z.s && head < (b + 1) * z.hk; ++head)
        values.fill(NaN, (head * z.s + from) * z.d, (head + 1) * z.s * z.d);
    });
    return input(dtype, keyShape, values, at(keyShape));
  };
  const forward = opCase({
    op: 'Attention',
    dtype,
    title,
    build: (random) => ({
      operands: {
        q: draw(random, shape),
        k: drawKeys(random),
        v: drawKeys(random),
        out: output(dtype, shape, close(dtype, 2, 'tensor'), at(shape)),
        lse: output(statistic, [z.b, z.h, z.t], {
          ...close(statistic, 2, 'tensor'),
          absolute: statistic === 'f64' ? 1e-13 : 1e-5,
        }),
        ...filterOperands(dtype, z, random),
      },
      args: argsOf(z, scale),
      reference: (v) => ({ ...attend(z, v, scale) }),
    }),
  });
  const backward = opCase({
    op: 'AttentionBackward',
    dtype,
    title,
    build(random) {
      const [q, k, v] = [draw(random, shape), drawKeys(random), drawKeys(random)];
      const filter = filterOperands(dtype, z, random);
      const plain = Object.entries({ q, k, v, ...filter }).flatMap(([name, operand]) =>
        operand ? [[name, Float64Array.from(operand.values!)] as const] : [],
      );
      const result = attend(z, Object.fromEntries(plain), scale);
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
          ...filter,
        },
        args: argsOf(z, scale),
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
    for (const causal of [false, true]) list.push([{ b, h, hk, t, s, d, causal }, kind]);
  };
  for (const t of [1, 3, 17, 33, 65, 129]) add(2, [3, 3], [t, t], 8, 'packed');
  for (const d of [1, 3, 16, 17, 32, 40, 64, 80, 96, 128, 192, 256])
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

/** Every form of mask, in each dim, at sizes around the tile sizes. */
function filteredAttentions(): MatrixCase[] {
  const list: Sizes[] = [];
  const add = (
    [b, h, hk]: readonly [number, number, number],
    [t, s, d]: readonly [number, number, number],
    filter: Filter,
  ): void => {
    for (const causal of [false, true]) list.push({ b, h, hk, t, s, d, causal, filter });
  };
  const mask = (
    as: 'bool' | 'f32' | 'like q',
    dims: string,
    more: Omit<Filter, 'title' | 'mask'> & { transposed?: boolean } = {},
  ): Filter => {
    const { transposed = false, ...rest } = more;
    const repeats = [0, 1, 2, 3].filter((d) => !dims.includes('bhts'[d]!));
    const also = Object.entries(rest).map(([name, what]) =>
      name === 'dropout' ? ', dropout' : `, ${name} ${what}`,
    );
    const title = `mask ${as} ${dims}${transposed ? ' transposed' : ''}${also.join('')}`;
    return { title, mask: { as, repeats, transposed }, ...rest };
  };
  const capped = (cap: number, more: Omit<Filter, 'title'> = {}): Filter => ({
    title: `cap ${cap}${Object.keys(more).map((name) => `, ${name}`)}`,
    cap,
    ...more,
  });
  const lengths = (...numbers: number[]): Filter => ({
    title: `lengths ${numbers}`,
    lengths: numbers,
  });
  add([2, 3, 3], [35, 67, 16], mask('bool', 'bhts'));
  add([1, 1, 1], [65, 65, 64], mask('bool', 'ts'));
  add([1, 4, 2], [33, 70, 32], mask('f32', 'ts'));
  add([2, 2, 2], [17, 17, 8], mask('like q', 'hts'));
  add([1, 2, 1], [20, 129, 80], mask('like q', 'bs'));
  add([1, 2, 2], [19, 37, 128], mask('f32', 'bht'));
  add([2, 2, 2], [1, 5, 3], mask('bool', ''));
  add([1, 1, 1], [35, 20, 128], mask('f32', 'bhts', { transposed: true }));
  add([1, 2, 2], [9, 20, 136], mask('like q', 'bhts'));
  add([2, 1, 1], [129, 129, 16], { title: 'key mask bool', keyMask: 'bool' });
  add([2, 1, 1], [20, 35, 24], { title: 'key mask like q', keyMask: 'like q' });
  add([2, 1, 1], [65, 65, 48], mask('bool', 'ts', { keyMask: 'f32' }));
  add([3, 1, 1], [35, 70, 128], lengths(0, 70, 33));
  add([3, 2, 1], [17, 200, 40], lengths(64, 1, 129));
  add([2, 2, 2], [5, 9, 4], lengths(-3, 500));
  add([2, 2, 1], [19, 131, 96], mask('bool', 'hts', { keyMask: 'bool', lengths: [100, 131] }));
  add([1, 2, 2], [70, 5, 64], lengths(4));
  add([2, 2, 1], [35, 141, 256], lengths(70, 129));
  add([1, 2, 1], [33, 67, 256], mask('bool', 'ts', { keyMask: 'bool' }));
  add([2, 2, 2], [3, 0, 4], lengths(0, 0));
  const dropout = { ...keepAll, p: 0.3, seed: 2 ** 40 + 7, offset: 3 };
  add([1, 2, 1], [67, 69, 64], { title: 'dropout', dropout });
  add([1, 1, 1], [35, 131, 128], { title: 'dropout', dropout });
  add([1, 2, 1], [35, 70, 256], { title: 'dropout', dropout });
  add([2, 2, 2], [17, 20, 7], mask('bool', 'ts', { lengths: [20, 11], dropout }));
  const some = { ...dropout, head: 3, heads: 7 };
  add([2, 2, 1], [5, 33, 32], { title: 'dropout of heads 3 and 4 of 7', dropout: some });
  const dealt = { ...dropout, sample: 2, rank: 1, ranks: 3 };
  add([4, 2, 1], [5, 33, 32], { title: 'dropout of the second of 3 ranks', dropout: dealt });
  for (const d of [3, 16, 64, 80, 128, 192, 256]) add([1, 4, 2], [67, 67, d], capped(0.7));
  add([2, 2, 1], [1, 70, 64], capped(50));
  add([2, 2, 2], [129, 129, 256], capped(2, { window: 40 }));
  add([2, 2, 1], [131, 131, 64], capped(0.5, { documents: 'packed' }));
  add([2, 2, 2], [33, 70, 128], capped(1, { keyMask: 'bool', lengths: [70, 41] }));
  add([1, 2, 2], [35, 67, 40], { ...mask('bool', 'ts'), title: 'mask bool, cap 1', cap: 1 });
  return floating.flatMap((dtype) => list.flatMap((z) => attentions(dtype, z, 'packed')));
}

export const cases: MatrixCase[] = [...everyAttention(), ...filteredAttentions()];
