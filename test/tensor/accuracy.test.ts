// The accuracy cases on the CPU.
import { full, scope, Tensor } from '../../lib/index.js';
import { cpu } from '../../lib/runtime/device.js';
import * as kernels from '../../lib/runtime/kernels.generated.js';
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './accuracy.cases.js';

testOnCpu('accuracy', cases);

test.each(['bf16', 'f16'] as const)(
  'a row of a long product in %s has its bits whichever rows are beside it',
  (dtype) => {
    scope(() => {
      const length = 2 ** 16 + 2 ** 14 + 5;
      const values = (rows: number, phase: number): Tensor => {
        const list = Float32Array.from({ length: rows * length }, (_, i) =>
          Math.sin(phase + 0.7 * i),
        );
        return Tensor.from(list, { shape: [rows, length] }).to(dtype);
      };
      const [x, weights] = [values(8, 0), values(3, 1)];
      const product = (rows: number): number[][] => {
        const out = Tensor.empty([rows, 3], 'f32', cpu());
        const options = { bias: null, aux: null, epilogue: 'none', accumulate: false } as const;
        const a = x.narrow(0, 0, rows);
        kernels.matmul({ ...options, a, b: weights, out, transA: false, transB: true });
        return out.toList() as number[][];
      };
      const all = product(8);
      for (const rows of [1, 2, 3, 5]) expect(product(rows)).toEqual(all.slice(0, rows));
      const exact = x.to('f64').matmul(weights.to('f64').transpose(0, 1)).toList() as number[][];
      for (const [row, sums] of exact.entries()) {
        for (const [column, sum] of sums.entries()) {
          expect(Math.abs((all[row]?.[column] as number) - sum)).toBeLessThan(1e-5 * length);
        }
      }
    });
  },
);

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
