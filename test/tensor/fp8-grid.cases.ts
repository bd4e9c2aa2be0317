// Codes of FP8 against PyTorch's float8 dtypes: the value of every code, and casts of values over
// the whole range, ties included.
import assert from 'node:assert/strict';
import type { Device } from '../../lib/runtime/device.js';
import * as kernels from '../../lib/runtime/kernels.generated.js';
import { scope, Tensor } from '../../lib/tensor/index.js';
import golden from '../golden/fp8.json';
import type { Case } from '../support/case.js';
import { FORMATS, type Format, GRIDS } from '../support/fp8-grid.js';

/** The identity, with scales of 1: a product returns the values of codes. */
function valuesMatch(format: Format, device: Device): void {
  const one = GRIDS[format].bias * 2 ** GRIDS[format].mantissa;
  scope(() => {
    const codes = Int32Array.from({ length: 256 }, (_, i) => i);
    const identity = Int32Array.from({ length: 256 }, (_, i) => (i % 17 === 0 ? one : 0));
    const bytes = (values: Int32Array): Tensor =>
      Tensor.from(values, { shape: [16, 16], device }).to('u8');
    const scale = Tensor.from([1], { dtype: 'f32', device });
    const out = Tensor.empty([16, 16], 'f32', device);
    const finite = golden[format].values.map((value) => typeof value === 'number');
    const a = bytes(codes.map((code) => (finite[code] ? code : 0)));
    kernels.fp8Matmul({
      a,
      b: bytes(identity),
      aScale: scale,
      bScale: scale,
      bias: null,
      out,
      aFormat: format,
      bFormat: format,
      aScaling: 'tensor',
      bScaling: 'tensor',
      fast: false,
      accumulate: false,
    });
    const expected = golden[format].values.map((value) => (typeof value === 'number' ? value : 0));
    const got = out.toArray().flat(2) as number[];
    for (const [code, value] of got.entries())
      assert.ok(value === expected[code], `code ${code}: ${value}`);
  });
}

/** With a largest magnitude of the format's largest value, the multiplier is 1. */
function castsMatch(format: Format, device: Device): void {
  const { inputs, codes } = golden[format];
  scope(() => {
    const values = Float32Array.from([GRIDS[format].largest, ...inputs]);
    const x = Tensor.from(values, { shape: [1, values.length], device });
    const width = Math.ceil(values.length / 16) * 16;
    const out = Tensor.empty([1, width], 'u8', device);
    const scale = Tensor.empty([1], 'f32', device);
    kernels.fp8Quantize({
      in: x,
      out,
      transposed: null,
      scale,
      transposedScale: null,
      format,
      scaling: 'tensor',
    });
    const got = (out.toArray().flat(1) as number[]).slice(1, values.length);
    assert.equal(scale.item(), 1);
    for (const [i, code] of got.entries())
      assert.equal(code, codes[i], `${inputs[i]} in ${format}`);
  });
}

export const cases: Case[] = FORMATS.flatMap((format): Case[] => [
  { name: `fp8 ${format}: values of codes are PyTorch's`, run: (d) => valuesMatch(format, d) },
  { name: `fp8 ${format}: casts are PyTorch's`, run: (d) => castsMatch(format, d) },
]);
