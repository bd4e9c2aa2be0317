// Tests that batch sizes change only between steps, and which backward completes one.
import { cpu } from '../../lib/runtime/device.js';
import type { Tensor } from '../../lib/tensor/index.js';
import { tinyBatch, tinyEngine } from '../e2e/tiny-training.js';

test('a batch size cannot change while gradients of a step wait for more', async () => {
  const options = { precision: 'fp32', offload: false, accumulation: 2 } as const;
  const engine = await tinyEngine(options, cpu());
  const { tokens, targets } = tinyBatch(0, engine.device);
  const micro = (): void => {
    engine.backward(engine.forward<Tensor>(tokens, targets));
    engine.step();
  };
  micro();
  expect(() => engine.setTrainBatchSize(9)).toThrow(
    /engine\.setTrainBatchSize: expected no gradients of an unfinished step, got some/,
  );
  expect(() => engine.setTrainMicroBatchSize(1)).toThrow(
    /engine\.setTrainMicroBatchSize: expected no gradients of an unfinished step, got some/,
  );
  expect(engine.gradientAccumulationSteps()).toBe(2);
  micro();
  expect(engine.globalSteps).toBe(1);
  engine.setTrainBatchSize(9);
  expect(engine.gradientAccumulationSteps()).toBe(3);
  for (const train of [0, -3, 4, '9' as never]) {
    expect(() => engine.setTrainBatchSize(train)).toThrow(/expected a positive multiple of 3/);
  }
  for (const size of [0, -1, 1.5, '2' as never]) {
    expect(() => engine.setTrainMicroBatchSize(size)).toThrow(/expected a positive integer/);
  }
  engine.setTrainMicroBatchSize(2);
  expect([engine.trainBatchSize(), engine.gradientAccumulationSteps()]).toEqual([6, 3]);
  engine.destroy();
  for (const tensor of [tokens, targets]) tensor.dispose();
});

test('the boundary of an accumulation is at its last backward and its step()', async () => {
  const options = { precision: 'fp32', offload: false, accumulation: 2 } as const;
  const engine = await tinyEngine(options, cpu());
  const { tokens, targets } = tinyBatch(0, engine.device);
  const found: boolean[] = [];
  const look = (): void => void found.push(engine.isGradientAccumulationBoundary());
  for (let micro = 0; micro < 4; micro++) {
    look();
    engine.backward(engine.forward<Tensor>(tokens, targets));
    look();
    engine.step();
  }
  look();
  expect(found).toEqual([false, false, true, true, false, false, true, true, false]);
  engine.noSync(() => {
    engine.backward(engine.forward<Tensor>(tokens, targets));
    look();
  });
  expect(found.at(-1)).toBe(false);
  engine.destroy();
  for (const tensor of [tokens, targets]) tensor.dispose();
});
