// fp16.auto_cast: floating-point inputs arrive in half precision, in lists and objects too; the rest as it was given.
import assert from 'node:assert/strict';
import { initialize, nn, Tensor } from '../../lib/index.js';
import type { Case } from '../support/case.js';

interface Batch {
  rows: Tensor[];
  label: Tensor;
  name: string;
}

class Recorder extends nn.Module {
  readonly layer = new nn.Linear(4, 4);
  readonly seen: string[] = [];

  forward(x: Tensor, { rows, label, name }: Batch): Tensor {
    this.seen.push(x.dtype, ...rows.map(({ dtype }) => dtype), label.dtype, name);
    return this.layer.call(x).to('f32').sum();
  }
}

function caseOf(auto: boolean, enabled: boolean, seen: string[]): Case {
  return {
    name: `fp16.auto_cast ${auto}, fp16 ${enabled}: inputs arrive as ${seen.slice(0, 2)}`,
    async run(device) {
      const model = new Recorder();
      const config = {
        train_batch_size: 1,
        fp16: { enabled, auto_cast: auto },
        optimizer: { type: 'AdamW' as const },
      };
      const { engine } = await initialize({ model, config, device });
      const dtype = enabled && !auto ? 'f16' : 'f32';
      const x = Tensor.from([[1, 2, 3, 4]], { device }).to(dtype);
      const row = Tensor.from([1], { device });
      const label = Tensor.from([1], { dtype: 'i32', device });
      const loss = engine.forward<Tensor>(x, { rows: [row], label, name: 'one' });
      engine.backward(loss);
      engine.step();
      engine.synchronize();
      assert.deepEqual(model.seen, [...seen, 'i32', 'one']);
      assert.equal(x.dtype, dtype);
      engine.destroy();
    },
  };
}

export const cases: Case[] = [
  caseOf(true, true, ['f16', 'f16']),
  caseOf(false, true, ['f16', 'f32']),
  caseOf(true, false, ['f32', 'f32']),
];
