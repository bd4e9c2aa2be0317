// What functions of elements and running sums compute, and what they refuse.
import assert from 'node:assert/strict';
import type { Device } from '../../lib/runtime/device.js';
import * as ops from '../../lib/tensor/index.js';
import { assertClose } from '../autograd/check.js';
import type { Case } from '../support/case.js';
import { composedCase, counting, expectTensor, refuses } from './composed.cases.js';

const i64 = (values: number[], device: Device): ops.Tensor =>
  Tensor.from(values, { dtype: 'i64', device });

const functions: Case[] = [
  composedCase('stairs, small differences and angles', (device) => {
    const x = Tensor.from([-1.5, -0.5, 0.5, 1.5, 2.5, nan, -inf], { device });
    expectTensor(x.floor(), 'f32', [-2, -1, 0, 1, 2, nan, -inf]);
    expectTensor(x.ceil().add(0), 'f32', [-1, 0, 1, 2, 3, nan, -inf]);
    expectTensor(x.round().add(0), 'f32', [-2, 0, 0, 2, 2, nan, -inf]);
    expectTensor(x.trunc().add(0), 'f32', [-1, 0, 0, 1, 2, nan, -inf]);
    expectTensor(counting(device, [3], 'i32').round(), 'i32', [0, 1, 2]);
    const small = Tensor.from([1e-7, -1e-7], { device });
    assertClose(small.log1p().toArray(), [1e-7, -1e-7], 1e-6, 'log1p');
    assertClose(small.expm1().toArray(), [1e-7, -1e-7], 1e-6, 'expm1');
    const [y, z] = [i64([0, 1, 0, -1], device), i64([1, 0, -1, 0], device)];
    const quarter = Math.PI / 2;
    assertClose(y.atan2(z).toArray(), [0, quarter, 2 * quarter, -quarter], 1e-6, 'atan2');
    const large = Tensor.from([300, -400], { device, dtype: 'f16' }).requireGrad();
    large
      .atan2(Tensor.from([400, 300], { device, dtype: 'f16' }))
      .sum()
      .backward();
    assertClose(large.grad?.toArray() ?? [], [400 / 25e4, 300 / 25e4], 2e-3, 'slope beyond f16');
    refuses('DS_DTYPE', /unary.*i64/, () => y.erf());
  }),
];

const { Tensor } = ops;
const { NaN: nan, POSITIVE_INFINITY: inf } = Number;

export const cases: Case[] = [
  ...functions,
  composedCase('running sums', (device) => {
    const x = counting(device, [2, 3], 'i32').add(1);
    expectTensor(x.cumsum(1), 'i64', [
      [1, 3, 6],
      [4, 9, 15],
    ]);
    expectTensor(x.gt(2).cumsum(-1), 'i64', [
      [0, 0, 1],
      [1, 2, 3],
    ]);
    const wide = ops.full([4099], 1 / 64, { device, dtype: 'bf16' }).cumsum(0);
    assertClose([wide.toArray().at(-1) as number], [4099 / 64], 4e-3, 'bf16 sums in f32');
    refuses('DS_SHAPE', /cumsum.*a dim in \[-2, 2\)/, () => x.cumsum(2));
  }),
];
