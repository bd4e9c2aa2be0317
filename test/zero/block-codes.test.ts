// Tests messages of quantized values: each has its own place in the memory of all.
import { cpu } from '../../lib/runtime/device.js';
import { held, Tensor } from '../../lib/tensor/index.js';
import { BLOCK, BlockCodes, CODE_BYTES } from '../../lib/zero/quantized.js';

const device = cpu();
const numel = 2 * BLOCK;
const values = (factor: number): Tensor =>
  held(() =>
    Tensor.from(
      Float32Array.from({ length: numel }, (_, i) => factor * (i - 60)),
      { device },
    ),
  );

test.each([8, 4] as const)('messages in %i bits keep to their own words', (bits) => {
  const codes = new BlockCodes(bits, numel);
  expect(codes.words).toBe((numel * bits) / 32 + 2);
  const messages = codes.allocate(3, values(1));
  const factors = [1, -3, 0.5];
  factors.forEach((factor, index) => {
    codes.write(values(factor), messages, index, device.compute);
  });
  factors.forEach((factor, index) => {
    const out = values(0);
    codes.read(messages, index, out, device.compute);
    const wanted = values(factor).toArray() as number[];
    const largest = Math.abs(factor) * (numel - 61);
    const error = (out.toArray() as number[]).map((value, i) => Math.abs(value - wanted[i]!));
    // Half a step of the largest block's scale.
    expect(Math.max(...error)).toBeLessThanOrEqual((largest / (2 ** bits - 1)) * 1.001);
  });
  messages.release();
});

test('the bytes of an element are those of its message', () => {
  expect(CODE_BYTES).toEqual({ weights: 1.0625, gradients: 0.5625 });
  for (const [bits, bytes] of [
    [8, CODE_BYTES.weights],
    [4, CODE_BYTES.gradients],
  ] as const) {
    expect((4 * new BlockCodes(bits, numel).words) / numel).toBe(bytes);
  }
});
