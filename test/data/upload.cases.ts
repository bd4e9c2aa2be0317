// Batches on their way to a device: every byte arrives, in order, however far the host runs ahead.
import assert from 'node:assert/strict';

import { DataLoader, RepeatingLoader, TokenDataset } from '../../lib/data/index.js';
import { StagedUpload } from '../../lib/data/upload.js';
import type { Device } from '../../lib/runtime/device.js';
import { liveTensors, matmul, noGrad, scope, Tensor } from '../../lib/tensor/index.js';
import type { Case } from '../support/case.js';
import { quiet } from '../support/quiet.js';

/** Work that keeps the compute stream busy while the host goes on. */
function occupy(device: Device, rounds: number): void {
  noGrad(() =>
    scope(() => {
      const size = device.kind === 'cpu' ? 32 : 2048;
      const a = Tensor.from(new Float32Array(size * size), { shape: [size, size], device });
      for (let i = 0; i < rounds; ++i) matmul(a, a);
    }),
  );
}

/** Batch `i`: odd sizes, growing at times, and an empty array now and then. */
function arraysOf(i: number) {
  const n = 1 + ((i * 37) % 5000);
  const empty = i % 4 === 3;
  return [
    { dtype: 'i32' as const, shape: [n], values: Int32Array.from({ length: n }, (_, k) => i + k) },
    { dtype: 'u8' as const, shape: [3], values: Uint8Array.of(i, i + 1, i + 2) },
    {
      dtype: 'f64' as const,
      shape: empty ? [0] : [2, 1],
      values: empty ? new Float64Array(0) : Float64Array.of(i / 3, -i),
    },
  ];
}

function uploads(device: Device): void {
  const uploader = new StagedUpload(device);
  const before = liveTensors();
  const batches: Tensor[][] = [];
  for (let i = 0; i < 24; ++i) {
    if (i % 3 === 0) occupy(device, 4);
    batches.push(uploader.upload(arraysOf(i)));
  }
  batches.forEach((tensors, i) => {
    arraysOf(i).forEach(({ values, shape, dtype }, k) => {
      const tensor = tensors[k] as Tensor;
      assert.deepEqual([tensor.dtype, tensor.shape], [dtype, shape]);
      assert.deepEqual(tensor.toArray(), Array.from(values as Float64Array));
      tensor.dispose();
    });
  });
  uploader.dispose();
  assert.equal(liveTensors(), before);
}

async function serves(device: Device): Promise<void> {
  const length = 1 + 40 * 64;
  const tokens = Int32Array.from({ length }, (_, i) => (i * 7919) % 50257);
  const loader = new DataLoader(new TokenDataset(tokens, 64), {
    batchSize: 6,
    device,
    shuffle: false,
  });
  await quiet();
  const buffers = device.memory.liveBuffers;
  const batches = new RepeatingLoader(loader);
  for (let step = 0; step < 2 * loader.length; ++step) {
    const { tokens: inputs, targets } = batches.next().value;
    occupy(device, 2);
    const first = (step % loader.length) * 6 * 64;
    const count = inputs.numel;
    assert.equal(inputs.device, device);
    assert.deepEqual(inputs.toArray(), Array.from(tokens.subarray(first, first + count)));
    assert.deepEqual(targets.toArray(), Array.from(tokens.subarray(first + 1, first + count + 1)));
    inputs.dispose();
    targets.dispose();
  }
  await loader.close();
  assert.equal(device.memory.liveBuffers, buffers);
}

export const cases: Case[] = [
  { name: 'staged uploads arrive complete while the device is busy', run: uploads },
  { name: 'a DataLoader fills batches on the device', run: serves },
];
