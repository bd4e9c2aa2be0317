// Tests destroy() after the job has ended: it throws only if no earlier call threw the error, and
// held gradients stay valid.
import { DsError, type Engine, liveTensors } from '../../lib/index.js';
import { cpu } from '../../lib/runtime/device.js';
import { held, type Tensor } from '../../lib/tensor/index.js';
import { tinyBatch, tinyEngine, trainTiny } from '../e2e/tiny-training.js';

const lost = new DsError({ code: 'DS_COMM', op: 'process group', expected: 'all', got: 'fewer' });

/** An engine with parts that fail on release, because the job has ended. */
async function engineOfEndedJob(): Promise<Engine> {
  const engine = await tinyEngine({ precision: 'fp32', offload: false }, cpu());
  const { parts } = engine as unknown as { parts: { owned: { defer(body: () => void): void } } };
  parts.owned.defer(() => {
    throw lost;
  });
  return engine;
}

function fail(engine: Engine): void {
  const remove = engine.module.registerForwardPreHook(() => {
    throw new Error('a batch of mine');
  });
  expect(() => engine.forward()).toThrow('a batch of mine');
  remove();
}

test('if no call has failed, the end of the job is thrown', async () => {
  const engine = await engineOfEndedJob();
  expect(() => engine.destroy()).toThrow(lost);
});

test('the error of a failed call is not thrown again', async () => {
  const engine = await engineOfEndedJob();
  fail(engine);
  engine.destroy();
});

test('if calls succeed after a failed one, the error is thrown', async () => {
  const engine = await engineOfEndedJob();
  fail(engine);
  trainTiny(engine, 0, 1);
  expect(() => engine.destroy()).toThrow(lost);
});

test('a failed backward leaks nothing', async () => {
  const options = { precision: 'bf16', offload: true } as const;
  const engine = await tinyEngine({ ...options, checkpointing: true }, cpu());
  trainTiny(engine, 0, 1);
  const failBackward = (): number => {
    let calls = 0;
    const [block] = engine.module.units();
    // The backward calls the hook once more.
    const remove = block?.module.registerForwardPreHook(() => {
      if (calls++ > 0) throw new Error('a block of mine');
    });
    const { tokens, targets } = tinyBatch(1, engine.device);
    const loss = engine.forward<Tensor>(tokens, targets);
    expect(() => engine.backward(loss)).toThrow('a block of mine');
    remove?.();
    for (const tensor of [tokens, targets]) tensor.dispose();
    trainTiny(engine, 1, 2);
    return liveTensors();
  };
  const live = failBackward();
  expect(failBackward()).toBe(live);
  engine.destroy();
});

/** Trains, and returns a view of each gradient of the first micro-batches. */
function viewsOfGradients(engine: Engine): Tensor[] {
  const views: Tensor[] = [];
  const { backward } = engine;
  engine.backward = (loss) => {
    backward.call(engine, loss);
    const grads = [...engine.module.parameters()].flatMap(({ grad }) => grad ?? []);
    views.push(...grads.map((grad) => held(() => grad.alias(grad.shape, grad.strides))));
  };
  trainTiny(engine, 0, 1);
  return views;
}

test.each([0, 1])('views of gradients outlive it, gpu_share %d', async (gpuShare) => {
  const device = cpu();
  const options = { precision: 'bf16', offload: true, gpuShare, accumulation: 2 } as const;
  const engine = await tinyEngine(options, device);
  const views = viewsOfGradients(engine);
  expect(views.length).toBeGreaterThan(0);
  engine.destroy();
  const { inUse } = device.memory;
  for (const view of views) view.release();
  expect(device.memory.inUse).toBeLessThan(inUse);
});
