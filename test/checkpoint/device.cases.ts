// Tests checkpoints of device memory: through staging buffers of any fill level, and during
// training.
import assert from 'node:assert/strict';
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { Checkpoint } from '../../lib/checkpoint/index.js';
import { SafetensorsFile } from '../../lib/checkpoint/safetensors-file.js';
import { type TensorSource, writeSafetensors } from '../../lib/checkpoint/safetensors-writer.js';
import { STAGING_BYTES } from '../../lib/checkpoint/staging.js';
import type { Device } from '../../lib/runtime/device.js';
import * as kernels from '../../lib/runtime/kernels.generated.js';
import { inOrder, Tensor } from '../../lib/tensor/index.js';
import { type TinyOptions, tinyEngine, trainTiny, weightBits } from '../e2e/tiny-training.js';
import type { Case } from '../support/case.js';
import { checksumFile } from '../support/checksum.js';
import { contentOf, save } from './content.js';

async function inFolder(body: (dir: string) => Promise<void>): Promise<void> {
  const dir = mkdtempSync(join(tmpdir(), 'ds-device-'));
  try {
    await body(dir);
  } finally {
    rmSync(dir, { recursive: true, force: true });
  }
}

/** Elements of f32: around the size of staging memory, and more than both buffers hold. */
const SIZES = [1, 0, STAGING_BYTES / 4 - 1, 3, STAGING_BYTES / 2 + 5, 7, STAGING_BYTES / 4 - 10];

async function throughStaging(device: Device): Promise<void> {
  await inFolder(async (dir) => {
    const path = join(dir, 'x.safetensors');
    const tensors = SIZES.map((size, i) => {
      const tensor = Tensor.empty([size], 'f32', device).keep();
      kernels.randomUniform({ out: tensor, low: -1, high: 1, seed: i, offset: 0, ...inOrder });
      return tensor;
    });
    const sources: TensorSource[] = tensors.map((values, i) => {
      return { name: `t${i}`, dtype: 'f32', shape: values.shape, values };
    });
    const sum = await writeSafetensors(path, sources);
    assert.equal(sum.crc32c, await checksumFile(path));
    const file = await SafetensorsFile.open(path);
    assert.equal(file.bytes, sum.bytes);
    for (const [i, entry] of file.entries.entries()) {
      const original = tensors.find((_, k) => entry.name === `t${k}`) as Tensor;
      const read = Tensor.empty(entry.shape, 'f32', device);
      kernels.fill({ out: read, value: i });
      await file.readInto(entry, read);
      assert.deepEqual(read.toRaw(), original.toRaw(), entry.name);
      const part = Math.floor(original.numel / 3);
      const range = { from: part, to: Math.min(1, part), numel: Math.max(part - 1, 0) };
      kernels.fill({ out: read, value: 9 });
      await file.readRange(entry, range, read);
      const expected = new Float32Array(original.numel).fill(9);
      const values = (original.toRaw() as Float32Array).subarray(part, part + range.numel);
      if (values.length > 0) expected.set(values, 1);
      assert.deepEqual(read.toRaw(), expected, `${entry.name}, a range`);
      read.dispose();
    }
    for (const tensor of tensors) tensor.dispose();
  });
}

/** Columns and blocks of saved rows, loaded into the middle of memory with other content. */
async function boxesOfRows(device: Device): Promise<void> {
  await inFolder(async (dir) => {
    for (const dtype of ['f32', 'bf16', 'i64'] as const) {
      const shape = [70, 3, 50];
      const numbers = Float64Array.from({ length: 70 * 3 * 50 }, (_, i) => i % 251);
      const fullTensor = Tensor.from(numbers, { shape, dtype, device }).keep();
      const content = contentOf([{ name: 'w', shape, tensor: fullTensor }], []);
      await save(dir, 't', content);
      const checkpoint = await Checkpoint.open(dir);
      const box = { offset: [1, 1, 7], shape: [68, 2, 31] };
      const around = Tensor.from(new Float64Array(5000), { dtype, device }).keep();
      const into = around.alias([2 * 68 * 31 - 30], undefined, 100);
      await checkpoint.read('model', 'w', { box, from: 20 }, into);
      const expected = new Array<number>(5000).fill(0);
      for (let i = 0; i < into.numel; ++i) {
        const [plane, rest] = [Math.floor((i + 20) / 62), (i + 20) % 62];
        const [row, column] = [Math.floor(rest / 31), rest % 31];
        const at = ((plane + 1) * 3 + row + 1) * 50 + column + 7;
        expected[100 + i] = numbers[at] as number;
      }
      assert.deepEqual(around.toArray(), expected, dtype);
      await checkpoint.close();
      for (const tensor of [into, around, fullTensor]) tensor.dispose();
    }
  });
}

/** The tensor files of a checkpoint. */
function shardsOf(path: string): string[] {
  const names = readdirSync(path).filter((name) => name.endsWith('.safetensors'));
  return names.sort().map((name) => readFileSync(join(path, name)).toString('base64'));
}

/** Steps are enqueued right after the save: the copy must hold the state before them. */
async function besideTraining(device: Device, options: TinyOptions): Promise<void> {
  await inFolder(async (dir) => {
    const engine = await tinyEngine(options, device);
    trainTiny(engine, 0, 3);
    const plain = await engine.saveCheckpoint(dir, { tag: 'plain' });
    const beside = await engine.saveCheckpoint(dir, { tag: 'beside', asynchronous: true });
    trainTiny(engine, 3, 6);
    assert.equal(await engine.checkpointDone(), beside);
    assert.deepEqual(shardsOf(beside), shardsOf(plain));
    const after = weightBits(engine);
    engine.destroy();
    const resumed = await tinyEngine(options, device);
    await resumed.loadCheckpoint(dir);
    trainTiny(resumed, 3, 6);
    assert.deepEqual(weightBits(resumed), after);
    resumed.destroy();
  });
}

const besideCase = (name: string, options: TinyOptions): Case => ({
  name: `a save beside training is of the state before it: ${name}`,
  async run(device) {
    device.setDeterministic(true);
    try {
      await besideTraining(device, options);
    } finally {
      device.setDeterministic(false);
    }
  },
});

export const cases: Case[] = [
  {
    name: 'safetensors of device memory have equal bytes around the borders of staging',
    run: throughStaging,
  },
  { name: 'boxes of saved rows are read into device memory', run: boxesOfRows },
  besideCase('fp32', { precision: 'fp32', offload: false }),
  besideCase('bf16', { precision: 'bf16', offload: false }),
  besideCase('bf16, offload', { precision: 'bf16', offload: true }),
  besideCase('fp16, speculative offload', { precision: 'fp16', offload: true, speculative: true }),
];
