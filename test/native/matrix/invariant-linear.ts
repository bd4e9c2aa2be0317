// Cases of InvariantLinear: sizes around its tiles, gaps, biases; a row has the same bits alone and
// beside others. So has a query of an invariant PagedAttention.
import assert from 'node:assert/strict';
import { noGrad, scope, Tensor } from '../../../lib/index.js';
import type { Device } from '../../../lib/runtime/device.js';
import type { DType } from '../../../lib/runtime/dtype.js';
import * as kernels from '../../../lib/runtime/kernels.generated.js';
import { inOrder } from '../../../lib/tensor/index.js';
import type { Case } from '../../support/case.js';
import { close, input, type MatrixCase, opCase, output } from './harness.js';
import { floating, paddedLayout } from './layouts.js';
import type { Mistake } from './mistake.js';

/** [rows, inputs, outputs]. */
const sizes = [
  [1, 64, 5],
  [1, 4200, 3],
  [3, 43, 7],
  [9, 24, 33],
  [17, 128, 65],
  [70, 200, 130],
  [2, 0, 3],
  [0, 8, 4],
  [2, 8, 0],
] as const;

const products: MatrixCase[] = floating.flatMap((dtype) =>
  sizes.flatMap(([rows, inputs, outputs], i) =>
    [false, true].map((gaps) =>
      opCase({
        op: 'InvariantLinear',
        dtype,
        title: `[${rows}, ${inputs}] to ${outputs}${i % 2 ? ', bias' : ''}${gaps ? ', gaps' : ''}`,
        build: (random) => {
          const layout = (shape: readonly number[]) => (gaps ? paddedLayout(shape) : {});
          const x = [rows, inputs];
          const weight = [outputs, inputs];
          return {
            operands: {
              x: input(dtype, x, random.normal(rows * inputs), layout(x)),
              weight: input(dtype, weight, random.normal(outputs * inputs), layout(weight)),
              bias: i % 2 ? input(dtype, [outputs], random.normal(outputs)) : null,
              out: output(
                dtype,
                [rows, outputs],
                {
                  ...close(dtype, 2, 'tensor'),
                  ...(dtype === 'f32' && { absolute: 2e-6 * Math.sqrt(inputs) }),
                },
                layout([rows, outputs]),
              ),
            },
            args: {},
            reference: (v) => ({
              out: Float64Array.from({ length: rows * outputs }, (_, at) => {
                const [m, n] = [Math.floor(at / outputs), at % outputs];
                let total = v.bias ? (v.bias[n] as number) : 0;
                for (let k = 0; k < inputs; ++k) {
                  total += (v.x![m * inputs + k] as number) * (v.weight![n * inputs + k] as number);
                }
                return total;
              }),
            }),
          };
        },
      }),
    ),
  ),
);

function drawTensor(shape: readonly number[], dtype: DType, device: Device, seed: number): Tensor {
  const out = Tensor.empty(shape, dtype, device);
  kernels.randomNormal({ out, mean: 0, stddev: 1, seed, offset: 0, ...inOrder });
  return out;
}

const valuesOf = (x: Tensor): number[] => x.to('f32').toArray() as number[];

/** Rows in batches that take each of the GPU's tiles, and rows alone. */
function compareRows(dtype: DType, device: Device): void {
  for (const [K, N] of [
    [520, 2100],
    [43, 77],
  ] as const) {
    const [x, weight] = [
      drawTensor([700, K], dtype, device, 1),
      drawTensor([N, K], dtype, device, 2),
    ];
    const bias = drawTensor([N], dtype, device, 3);
    const outOf = (first: number, rows: number): number[] => {
      const out = Tensor.empty([rows, N], dtype, device);
      kernels.invariantLinear({ x: x.narrow(0, first, rows), weight, bias, out });
      return valuesOf(out);
    };
    const all = outOf(0, 700);
    for (const [first, rows] of [
      [0, 1],
      [6, 7],
      [300, 16],
      [101, 64],
      [636, 64],
    ] as const) {
      const localValues = outOf(first, rows);
      assert.deepEqual(
        localValues,
        all.slice(first * N, (first + rows) * N),
        `${rows} from ${first}`,
      );
    }
  }
}

/** Queries of one sequence: all at once, in pieces, and alone beside another sequence. */
function compareQueries(dtype: DType, device: Device, headDim: number, window: number): void {
  const [T, H, Hk, block] = [150, 6, 2, 16];
  const blocks = Math.ceil(T / block);
  const pool = drawTensor([2 * blocks, 2, Hk, block, headDim], dtype, device, 4);
  const q = drawTensor([T, H, headDim], dtype, device, 5);
  const list = (values: readonly number[], shape = [values.length]): Tensor =>
    Tensor.from(Int32Array.from(values), { shape, device });
  const table = Array.from({ length: blocks }, (_, i) => (i * 7) % blocks);
  const other = table.map((value) => value + blocks);
  const scale = headDim ** -0.5;
  const outOf = (first: number, count: number): number[][] => {
    const out = Tensor.empty([count + 1, H, headDim], dtype, device);
    const lse = Tensor.empty([count + 1, H], 'f32', device);
    const queries = Tensor.empty([count + 1, H, headDim], dtype, device);
    kernels.copy({ in: q.narrow(0, first, count), out: queries.narrow(0, 1, count) });
    kernels.copy({ in: q.narrow(0, 3, 1), out: queries.narrow(0, 0, 1) });
    kernels.pagedAttention({
      q: queries,
      pool,
      tables: list([...other, ...table], [2, blocks]),
      starts: list([0, 1, 1 + count]),
      lengths: list([T - 20, first + count]),
      out,
      lse,
      sinks: null,
      scale,
      cap: 0,
      window,
      longest: count,
      invariant: true,
    });
    return [valuesOf(out.narrow(0, 1, count)), valuesOf(lse.narrow(0, 1, count))];
  };
  const [all = [], sums = []] = outOf(0, T);
  for (const [first, count] of [
    [0, 1],
    [149, 1],
    [64, 1],
    [7, 40],
    [90, 60],
  ] as const) {
    const [own, ownSums] = outOf(first, count);
    const each = H * headDim;
    assert.deepEqual(own, all.slice(first * each, (first + count) * each), `${count} of ${first}`);
    assert.deepEqual(ownSums, sums.slice(first * H, (first + count) * H), `lse of ${first}`);
  }
}

const bits: Case[] = (['f32', 'f16', 'bf16'] as const).flatMap((dtype) => [
  {
    name: `InvariantLinear ${dtype}: a row has the same bits in any batch`,
    run: (device) => noGrad(() => scope(() => compareRows(dtype, device))),
  },
  ...[64, 40, 128, 160].map((headDim) => ({
    name: `PagedAttention ${dtype} D${headDim}: an invariant query has the same bits in any batch`,
    run: (device: Device) =>
      noGrad(() =>
        scope(() => {
          for (const window of [0, 37]) compareQueries(dtype, device, headDim, window);
        }),
      ),
  })),
]);

export const cases: readonly (MatrixCase | Case)[] = [...products, ...bits];

export const mistakes: readonly Mistake[] = [
  {
    op: 'invariant_linear',
    what: 'inputs',
    code: 'DS_SHAPE',
    message: 'a weight [3, 4]',
    run: (m) =>
      kernels.invariantLinear({ x: m([2, 4]), weight: m([3, 5]), bias: null, out: m([2, 3]) }),
  },
  {
    op: 'invariant_linear',
    what: 'dtypes',
    code: 'DS_DTYPE',
    message: 'f16',
    run: (m) =>
      kernels.invariantLinear({
        x: m([2, 4]),
        weight: m([3, 4], 'f16'),
        bias: null,
        out: m([2, 3]),
      }),
  },
  {
    op: 'paged_attention',
    what: 'log-sum-exps of split keys',
    code: 'DS_ARGUMENT',
    message: 'invariant together with lse',
    run: (m) =>
      kernels.pagedAttention({
        q: m([0, 4, 8]),
        pool: m([5, 2, 2, 16, 8]),
        tables: m([0, 2], 'i32'),
        starts: m([1], 'i32'),
        lengths: m([0], 'i32'),
        out: m([0, 4, 8]),
        lse: m([0, 4]),
        sinks: null,
        scale: 1,
        cap: 0,
        window: 0,
        longest: 2,
        invariant: false,
      }),
  },
];
