// What running sums compute, and what they refuse.

import * as ops from '../../lib/tensor/index.js';
import { assertClose } from '../autograd/check.js';
import type { Case } from '../support/case.js';
import { composedCase, counting, expectTensor, refuses } from './composed.cases.js';

export const cases: Case[] = [
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
