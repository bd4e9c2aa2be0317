// Tests that batch sizes change only between steps, and which backward completes one.
import {
  BatchSizes,
  MicroBatches,
  managedAccumulation,
  stagedAccumulation,
  unmanagedAccumulation,
} from '../../lib/engine/step/batch-sizes.js';
import type { DsError } from '../../lib/errors.js';
import { cpu } from '../../lib/runtime/device.js';
import type { Tensor } from '../../lib/tensor/index.js';
import { tinyBatch, tinyEngine } from '../e2e/tiny-training.js';
import { thrownBy } from '../support/refusal.js';

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

describe('the micro-batches of a step', () => {
  const sizesOf = (accumulation: (steps: number) => object, passes?: number) =>
    new BatchSizes({
      microPerDevice: 2,
      accumulationSteps: 3,
      dataRanks: 4,
      passes,
      accumulation: accumulation as typeof managedAccumulation,
    });

  /** Runs backwards until one is refused; `micros` has the state before each of them. */
  function followSteps(sizes: BatchSizes, limit = 9) {
    const micros = new MicroBatches(sizes);
    const seen: unknown[] = [];
    for (let i = 0; i < limit; i++) {
      try {
        micros.requireAnother();
      } catch (error) {
        return { seen, micros, error: error as DsError };
      }
      const { completesStep: completes } = micros;
      micros.begin();
      micros.end();
      seen.push([completes, micros.atBoundary, micros.samples, micros.step(false)]);
    }
    return { seen, micros, error: null };
  }

  test('are counted up to the accumulation steps', () => {
    const sizes = sizesOf(managedAccumulation);
    expect([sizes.micros, sizes.train, sizes.accumulation.divisor]).toEqual([8, 24, 3]);
    const { seen, micros, error } = followSteps(sizes);
    expect(seen).toEqual([
      [false, false, 8, false],
      [false, false, 16, false],
      [true, true, 24, true],
    ]);
    expect(error).toMatchObject({
      code: 'DS_AUTOGRAD',
      op: 'engine.backward',
      got: 'another backward()',
      expected: 'step() after 3 backward()s (gradient_accumulation_steps)',
    });
    expect([micros.count, micros.hasStepped]).toEqual([3, true]);
    micros.reset();
    expect([micros.count, micros.samples, micros.hasStepped, micros.atBoundary]).toEqual([
      0,
      0,
      false,
      false,
    ]);
    micros.requireAnother();
  });

  test('have one backward for each stage of a rank, the last of which counts samples', () => {
    const sizes = sizesOf(stagedAccumulation(2), 2);
    expect(sizes.accumulation.divisor).toBe(3);
    const { seen, error } = followSteps(sizes);
    expect(seen).toEqual(
      [0, 8, 8, 16, 16, 24].map((samples, i) => [false, false, samples, i === 5]),
    );
    expect(error?.code).toBe('DS_AUTOGRAD');
  });

  test('of a caller that accumulates itself are all steps', () => {
    const { seen, error } = followSteps(sizesOf(unmanagedAccumulation), 5);
    expect(sizesOf(unmanagedAccumulation).accumulation.divisor).toBe(1);
    expect(seen).toEqual([8, 16, 24, 32, 40].map((samples) => [false, false, samples, true]));
    expect(error).toBeNull();
  });

  test('inside noSync() have samples, and do not count', () => {
    const micros = new MicroBatches(sizesOf((steps) => managedAccumulation(steps - 2)));
    const refusal = (body: () => unknown) => thrownBy(body).got;
    expect(refusal(() => micros.step(true))).toBe('no gradient since the last step');
    const inside = micros.noSync(() => {
      expect([micros.isLocal, micros.completesStep, micros.atBoundary]).toEqual([
        true,
        false,
        false,
      ]);
      micros.begin();
      micros.end();
      expect(refusal(() => micros.step(false))).toBe('step() inside it');
      return refusal(() => micros.noSync(() => 1));
    });
    expect([inside, micros.isLocal, micros.count, micros.samples]).toEqual([
      'a nested noSync()',
      false,
      0,
      8,
    ]);
    expect(refusal(() => micros.step(false))).toBe(
      'only gradients of noSync(), which do not count',
    );
    expect(thrownBy(() => micros.noSync(3 as never)).op).toBe('engine.noSync');
    expect(micros.isLocal).toBe(false);
    micros.begin();
    micros.end();
    expect([micros.samples, micros.step(false), micros.hasStepped]).toEqual([16, true, false]);
  });
});
