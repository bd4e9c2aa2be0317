// Tests the out-of-memory error of training: it shows the request, the owners of memory, the cap,
// and the best fix.
import assert from 'node:assert/strict';
import { DsError, initialize, nn, Tensor } from '../../lib/index.js';
import type { Device } from '../../lib/runtime/device.js';
import type { Case } from '../support/case.js';
import { quiet } from '../support/quiet.js';

const WIDTH = 256;

class Wide extends nn.Module {
  readonly linear = new nn.Linear(WIDTH, WIDTH);

  override forward(x: Tensor): Tensor {
    return this.linear.call(x).square().exp().mean();
  }
}

async function runOutOfMemory(device: Device): Promise<DsError> {
  const config = {
    train_micro_batch_size_per_gpu: 4,
    gradient_accumulation_steps: 3,
    optimizer: { type: 'AdamW', params: { lr: 1e-3 } },
  } as const;
  const { engine } = await initialize({ model: new Wide(), config, device });
  const x = Tensor.empty([2 ** 15, WIDTH], 'f32', device).keep();
  x.fill_(0.01);
  await quiet();
  device.trim();
  device.setMemoryCap(device.memory.reserved + 2 ** 20);
  try {
    engine.forward(x);
  } catch (error) {
    return error as DsError;
  } finally {
    device.setMemoryCap(0);
    engine.destroy();
    x.dispose();
  }
  throw new Error('it fitted');
}

export const cases: Case[] = [
  {
    name: 'out of memory names the owners, the cap and what would free most',
    async run(device) {
      const error = await runOutOfMemory(device);
      assert.ok(error instanceof DsError, String(error));
      assert.equal(error.code, 'DS_OUT_OF_MEMORY');
      assert.match(error.message, /expected \d+ bytes of (device|host) memory/);
      const owners = [
        'weights',
        'gradients',
        'master weights and optimizer',
        'activations and other',
      ];
      for (const owner of owners) assert.match(error.got, new RegExp(`${owner} \\d+\\.\\d MiB`));
      const state = /master weights and optimizer (\d+\.\d)/.exec(error.got)?.[1];
      const bytes = (WIDTH * WIDTH + WIDTH) * 4;
      assert.ok(Number(state) >= (2 * bytes) / 2 ** 20 - 0.1, error.got);
      assert.match(error.got, /under the cap \d+\.\d MiB/);
      const advice = error.hint.match(/\(\d\)/g);
      assert.deepEqual(advice, ['(1)', '(2)', '(3)']);
      assert.match(error.hint, /setMemoryCap\(\) allows \d+\.\d [MG]iB of/);
      assert.match(error.hint, /checkpoint\(\) around each block.*MiB/);
      assert.match(
        error.hint,
        /"train_micro_batch_size_per_gpu": 2 with "gradient_accumulation_steps": 6|"bf16"/,
      );
      assert.match(error.stack ?? '', /out-of-memory\.cases/);
      assert.throws(
        () => {
          device.setMemoryCap(device.memory.reserved + 1);
          try {
            Tensor.empty([2 ** 26], 'f32', device);
          } finally {
            device.setMemoryCap(0);
          }
        },
        (again: unknown) => again instanceof DsError && !/held:/.test(again.message),
        'an engine that is gone says nothing',
      );
    },
  },
];
