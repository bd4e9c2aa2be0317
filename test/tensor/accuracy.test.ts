// The accuracy cases on the CPU.
import { full, scope, type Tensor } from '../../lib/index.js';
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './accuracy.cases.js';

testOnCpu('accuracy', cases);

test.each([
  ['f32', 1, 1],
  ['f32', 3, 2],
  ['bf16', 1, 1],
  ['bf16', 2, 1],
] as const)('long products of equal values in %s, [%i, k] by [k, %i]', (dtype, rows, columns) => {
  scope(() => {
    const length = 2 ** 22 + 3;
    const x = full([rows, length], 0.1, { dtype });
    const y = full([length, columns], 0.1, { dtype });
    const value = x.narrow(1, 0, 1).to('f64').toArray()[0] as number;
    const exact = length * value ** 2;
    const near = (product: Tensor, limit: number): void => {
      for (const sum of product.toArray()) {
        expect(Math.abs(Number(sum) / exact - 1)).toBeLessThan(limit);
      }
    };
    near(x.to('f32').matmul(y.to('f32')), 1e-5);
    const rounded = dtype === 'bf16' ? 2 ** -8 : 1e-5;
    near(x.matmul(y), rounded);
    near(x.matmul(y.transpose(0, 1).contiguous().transpose(0, 1)), rounded);
  });
});
