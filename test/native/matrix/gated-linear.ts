// Cases of GatedLinear and QuantizedGatedLinear: few and many rows, biases, odd sizes, empty sizes.
// Two separate ops give the same bits.
import assert from 'node:assert/strict';
import { noGrad, scope, Tensor } from '../../../lib/index.js';
import type { Device } from '../../../lib/runtime/device.js';
import type { DType } from '../../../lib/runtime/dtype.js';
import * as kernels from '../../../lib/runtime/kernels.generated.js';
import { inOrder } from '../../../lib/tensor/index.js';
import type { Case } from '../../support/case.js';
import { unary } from './functions.js';
import { close, input, type MatrixCase, opCase, output } from './harness.js';
import { floating } from './layouts.js';
import { roundTo } from './numbers.js';

/** [rows, inputs, hidden]. */
const sizes = [
  [1, 64, 5],
  [1, 4200, 3],
  [1, 43, 7],
  [3, 32, 1],
  [9, 24, 33],
  [0, 8, 4],
  [2, 8, 0],
] as const;
const { value: silu } = unary.silu;

const plain = floating.flatMap((dtype) =>
  sizes.map(([rows, inputs, hidden], i) =>
    opCase({
      op: 'GatedLinear',
      dtype,
      title: `[${rows}, ${inputs}] to ${hidden}${i % 2 ? ' with bias' : ''}`,
      build: (random) => ({
        operands: {
          x: input(dtype, [rows, inputs], random.normal(rows * inputs)),
          weight: input(dtype, [2 * hidden, inputs], random.normal(2 * hidden * inputs)),
          bias: i % 2 ? input(dtype, [2 * hidden], random.normal(2 * hidden)) : null,
          // Gates are rounded, and the slope of the activation is at most about the factor.
          out: output(dtype, [rows, hidden], {
            ...close(dtype, 4, 'tensor'),
            ...(dtype === 'f32' && { absolute: 2e-5 * Math.sqrt(inputs) }),
          }),
        },
        args: {},
        reference: (v) => {
          const sum = (m: number, n: number): number => {
            let total = v.bias ? (v.bias[n] as number) : 0;
            for (let k = 0; k < inputs; ++k) {
              total += (v.x![m * inputs + k] as number) * (v.weight![n * inputs + k] as number);
            }
            return roundTo(total, dtype);
          };
          return {
            out: Float64Array.from({ length: rows * hidden }, (_, at) => {
              const [m, n] = [Math.floor(at / hidden), at % hidden];
              return silu(sum(m, n)) * sum(m, hidden + n);
            }),
          };
        },
      }),
    }),
  ),
);

/**
 * Single rows use their own kernel, with steps of one row or of 64 inputs and more; other row
 * counts use another.
 */
const quantized: MatrixCase[] = (['f32', 'f16', 'bf16'] as const).flatMap((dtype) =>
  [
    { rows: 1, inputs: 256, hidden: 37, bits: 4, group: 128 },
    { rows: 2, inputs: 64, hidden: 5, bits: 8, group: 64 },
    { rows: 1, inputs: 320, hidden: 21, bits: 8, group: 64 },
    { rows: 2, inputs: 96, hidden: 5, bits: 4, group: 32 },
    { rows: 8, inputs: 160, hidden: 8, bits: 8, group: 160 },
    { rows: 9, inputs: 128, hidden: 12, bits: 4, group: 128 },
    { rows: 2, inputs: 128, hidden: 3, bits: 8, group: 64 },
    { rows: 2, inputs: 21, hidden: 3, bits: 4, group: 8 },
  ].map(({ rows, inputs, hidden, bits, group }, i) =>
    opCase({
      op: 'QuantizedGatedLinear',
      dtype,
      title: `${rows} rows of ${inputs} to ${hidden}, ${bits} bits, groups of ${group}`,
      build: (random) => {
        const [outputs, groups] = [2 * hidden, Math.ceil(inputs / group)];
        const words = Math.ceil((inputs * bits) / 32);
        const codes = random.integers(outputs * words, -(2 ** 31), 2 ** 31);
        return {
          operands: {
            x: input(dtype, [rows, inputs], random.normal(rows * inputs)),
            packed: input('i32', [outputs, words], codes),
            scale: input(dtype, [outputs, groups], random.uniform(outputs * groups, 0.01, 0.02)),
            zero:
              i % 2
                ? input('u8', [outputs, groups], random.integers(outputs * groups, 0, 2 ** bits))
                : null,
            bias: i % 2 ? input(dtype, [outputs], random.normal(outputs)) : null,
            out: output(dtype, [rows, hidden], {
              ...close(dtype, 6, 'tensor'),
              ...(dtype === 'f32' && { absolute: 2e-4 }),
            }),
          },
          args: { bits, group },
          reference: (v) => {
            const code = (n: number, k: number): number =>
              ((v.packed![n * words + Math.floor((k * bits) / 32)] as number) >>>
                ((k * bits) % 32)) &
              (2 ** bits - 1);
            const sum = (m: number, n: number): number => {
              let total = v.bias ? (v.bias[n] as number) : 0;
              for (let k = 0; k < inputs; ++k) {
                const at = n * groups + Math.floor(k / group);
                const zero = v.zero ? (v.zero[at] as number) : 2 ** (bits - 1);
                total +=
                  (v.x![m * inputs + k] as number) * (code(n, k) - zero) * (v.scale![at] as number);
              }
              return roundTo(total, dtype);
            };
            return {
              out: Float64Array.from({ length: rows * hidden }, (_, at) => {
                const [m, n] = [Math.floor(at / hidden), at % hidden];
                return silu(sum(m, n)) * sum(m, hidden + n);
              }),
            };
          },
        };
      },
    }),
  ),
);

function drawTensor(shape: readonly number[], dtype: DType, device: Device, seed: number): Tensor {
  const out = Tensor.empty(shape, dtype, device);
  kernels.randomNormal({ out, mean: 0, stddev: 1, seed, offset: 0, ...inOrder });
  return out;
}

/** out of two ops, through [rows, 2 hidden]. */
function behind(
  rows: number,
  hidden: number,
  like: Tensor,
  product: (out: Tensor) => void,
): number[] {
  const both = Tensor.empty([rows, 2 * hidden], like.dtype, like.device);
  product(both);
  const out = Tensor.empty([rows, hidden], like.dtype, like.device);
  kernels.swiglu({ gate: both.narrow(1, 0, hidden), up: both.narrow(1, hidden, hidden), out });
  return out.to('f32').toArray();
}

const [INPUTS, HIDDEN] = [256, 2120];

function comparePlain(dtype: DType, rows: number, device: Device): void {
  const [x, weight] = [
    drawTensor([rows, INPUTS], dtype, device, 1),
    drawTensor([2 * HIDDEN, INPUTS], dtype, device, 2),
  ];
  const bias = drawTensor([2 * HIDDEN], dtype, device, 3);
  const out = Tensor.empty([rows, HIDDEN], dtype, device);
  kernels.gatedLinear({ x, weight, bias, out });
  const gemm = {
    aux: null,
    transA: false,
    transB: true,
    epilogue: 'none',
    accumulate: false,
  } as const;
  const expected = behind(rows, HIDDEN, x, (both) =>
    kernels.matmul({ a: x, b: weight, bias, out: both, ...gemm }),
  );
  assert.deepEqual(out.to('f32').toArray(), expected, `${rows} rows`);
}

function compareCodes(dtype: DType, rows: number, bits: 8 | 4, device: Device): void {
  const group = bits === 4 ? 128 : INPUTS;
  const packed = Tensor.empty([2 * HIDDEN, (INPUTS * bits) / 32], 'i32', device);
  const scale = Tensor.empty([2 * HIDDEN, INPUTS / group], dtype, device);
  const weight = drawTensor([2 * HIDDEN, INPUTS], dtype, device, 2);
  kernels.quantizeWeights({ in: weight, packed, scale, bits, group });
  const x = drawTensor([rows, INPUTS], dtype, device, 1);
  const bias = drawTensor([2 * HIDDEN], dtype, device, 3);
  const codes = { packed, scale, zero: null, bias, bits, group };
  const out = Tensor.empty([rows, HIDDEN], dtype, device);
  kernels.quantizedGatedLinear({ x, ...codes, out });
  const expected = behind(rows, HIDDEN, x, (both) =>
    kernels.quantizedLinear({ x, ...codes, out: both }),
  );
  assert.deepEqual(out.to('f32').toArray(), expected, `${rows} rows, ${bits} bits`);
}

/** More pairs than a GPU can run at once. */
const sameBits: Case[] = (['f32', 'f16', 'bf16'] as const).map((dtype) => ({
  name: `GatedLinear has the bits of a product with Swiglu behind it: ${dtype}`,
  run: async (device: Device) =>
    noGrad(() =>
      scope(() => {
        for (const rows of [1, 2, 8, 9]) {
          comparePlain(dtype, rows, device);
          for (const bits of [8, 4] as const) compareCodes(dtype, rows, bits, device);
        }
      }),
    ),
}));

export const cases: (MatrixCase | Case)[] = [...plain, ...quantized, ...sameBits];
