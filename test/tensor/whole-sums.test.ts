// Large sums of integers: which parts are widened one after the other.
import { full, scope } from '../../lib/index.js';
import * as kernels from '../../lib/runtime/kernels.generated.js';

jest.mock('../../lib/runtime/kernels.generated.js', () => {
  const real = jest.requireActual('../../lib/runtime/kernels.generated.js');
  return { ...real, reduce: jest.fn(real.reduce) };
});

test.each([
  [
    [130, 128, 131],
    [0, 1, 2],
  ],
  [
    [130, 131, 128],
    [1, 0, 2],
  ],
  [
    [2, 1100, 1101],
    [0, 1, 2],
  ],
] as const)('parts of [%j] in the order %j lie together', (shape, order) => {
  const reduced = jest.mocked(kernels.reduce);
  scope(() => {
    const laid = order.map((d) => shape[d] as number);
    const x = full(laid, 1, { dtype: 'u8' }).permute(...order);
    reduced.mockClear();
    expect(Number(x.sum().item())).toBe(x.numel);
    const parts = reduced.mock.calls.map(([{ in: part }]) => part.shape);
    expect(parts.length).toBeGreaterThan(1);
    // Rows of memory stay whole: a strided part would touch all of the tensor's memory.
    expect(parts.map((part) => part[2])).toEqual(parts.map(() => x.shape[2]));
  });
});
