// Tests that memory is flat over 10,000 steps, and that use of a released tensor throws.
import assert from 'node:assert/strict';
import { DsError, initialize, nn, Tensor } from '../../lib/index.js';
import type { Device } from '../../lib/runtime/device.js';
import { liveTensors, scope } from '../../lib/tensor/index.js';
import type { OffloadOptimizerConfig } from '../../types/config.js';
import type { Case } from '../support/case.js';
import { collectGarbage } from '../support/quiet.js';

class Regression extends nn.Module {
  readonly hidden = new nn.Linear(4, 8);
  readonly out = new nn.Linear(8, 1);
  readonly loss = new nn.MSELoss();

  override forward(x: Tensor, y: Tensor): Tensor {
    return this.loss.call(this.out.call(this.hidden.call(x).tanh()), y) as Tensor;
  }
}

async function flatMemory(
  device: Device,
  steps: number,
  offload: OffloadOptimizerConfig,
): Promise<void> {
  const config = {
    train_micro_batch_size_per_gpu: 2,
    optimizer: { type: 'AdamW', params: { lr: 1e-3 } },
    zero_optimization: { stage: 1, offload_optimizer: offload },
  } as const;
  const { engine } = await initialize({ model: new Regression(), config, device });
  const x = Tensor.from(
    [
      [1, 2, 3, 4],
      [2, 3, 4, 5],
    ],
    { device },
  ).keep();
  const y = Tensor.from([[1], [2]], { device }).keep();
  const run = (count: number): void => {
    for (let i = 0; i < count; ++i) {
      const loss = engine.forward<Tensor>(x, y);
      engine.backward(loss);
      engine.step();
    }
    engine.synchronize();
  };
  run(500);
  collectGarbage();
  const before = {
    memory: device.memory,
    tensors: liveTensors(),
    heap: process.memoryUsage().heapUsed,
  };
  run(steps);
  collectGarbage();
  const after = {
    memory: device.memory,
    tensors: liveTensors(),
    heap: process.memoryUsage().heapUsed,
  };
  assert.equal(after.memory.inUse, before.memory.inUse, 'native bytes in use');
  assert.equal(after.memory.reserved, before.memory.reserved, 'native bytes reserved');
  assert.equal(after.memory.liveBuffers, before.memory.liveBuffers, 'native buffers');
  assert.equal(after.tensors, before.tensors, 'tensors');
  const growth = after.heap - before.heap;
  assert.ok(growth < 8 * 2 ** 20, `the JavaScript heap grew by ${growth} bytes`);
  engine.destroy();
  x.dispose();
  y.dispose();
}

export const cases: Case[] = [
  {
    name: '10,000 steps leave memory flat',
    run: (device) => flatMemory(device, 10_000, { device: 'none' }),
  },
  {
    name: '10,000 offloaded steps leave memory flat',
    run: (device) => flatMemory(device, 10_000, { device: 'cpu', super_offload: false }),
  },
  {
    name: '2,000 steps of speculative offload leave memory flat',
    run: (device) => flatMemory(device, 2_000, { device: 'cpu', super_offload: true }),
  },
  {
    name: 'a released tensor is a clear error',
    run(device) {
      const escaped: Tensor[] = [];
      scope(() => {
        escaped.push(Tensor.from([1, 2, 3], { device }));
      });
      const tensor = escaped[0] as Tensor;
      for (const use of [
        () => tensor.toArray(),
        () => tensor.add(tensor),
        () => tensor.reshape([3, 1]),
      ]) {
        assert.throws(use, (error: unknown) => {
          assert.ok(error instanceof DsError);
          assert.equal(error.code, 'DS_RELEASED');
          assert.match(error.hint, /keep\(\)/);
          return true;
        });
      }
    },
  },
];
