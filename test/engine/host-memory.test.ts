// Tests the host memory of offloaded AdamW state, in bytes a parameter.
import { cpu } from '../../lib/runtime/device.js';
import { type TinyOptions, tinyEngine, trainTiny } from '../e2e/tiny-training.js';

async function bytesOf(options: Partial<TinyOptions>): Promise<number> {
  const engine = await tinyEngine({ precision: 'bf16', offload: true, ...options }, cpu());
  trainTiny(engine, 0, 1);
  const { state, stage } = engine.parts;
  const parameters = stage.partitions.reduce((sum, { numel }) => sum + numel, 0);
  const bytes = state.bytes.host / parameters;
  engine.destroy();
  return bytes;
}

test('a deferred update needs less host memory than a speculative one', async () => {
  // Moments, the lower half of the master with its bit, the gradient; two slots of one unit.
  const deferred = await bytesOf({});
  expect(deferred).toBeGreaterThan(8 + 2.125 + 2);
  expect(deferred).toBeLessThan(8 + 4 + 2);
  // Moments, master, gradient and weight.
  expect(await bytesOf({ speculative: true })).toBeCloseTo(8 + 4 + 2 + 2, 0);
});
