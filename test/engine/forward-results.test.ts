// Tests that destroy() releases the results of a forward without a step.
import { cpu } from '../../lib/runtime/device.js';
import type { Tensor } from '../../lib/tensor/index.js';
import { liveTensors } from '../../lib/tensor/tensor.js';
import { tinyBatch, tinyEngine } from '../e2e/tiny-training.js';

test('destroy() releases the loss of a forward without a step', async () => {
  const engine = await tinyEngine({ precision: 'fp32', offload: false }, cpu());
  const { tokens, targets } = tinyBatch(0, engine.device);
  const loss = engine.forward<Tensor>(tokens, targets);
  engine.backward(loss);
  expect(loss.item()).toBeGreaterThan(0);
  const before = liveTensors();
  engine.destroy();
  expect(liveTensors()).toBeLessThan(before);
  expect(() => loss.item()).toThrow(/released|disposed/);
  for (const tensor of [tokens, targets]) tensor.dispose();
});
