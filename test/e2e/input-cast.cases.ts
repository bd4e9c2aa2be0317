// Tests fp16.auto_cast and torch_autocast: the engine casts floating-point inputs to 16 bits, also
// in lists and objects.
import assert from 'node:assert/strict';
import { type DsConfig, initialize, nn, Tensor } from '../../lib/index.js';
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
  const fp16 = { fp16: { enabled, auto_cast: auto } };
  return caseWith(`fp16.auto_cast ${auto}, fp16 ${enabled}`, fp16, enabled && !auto, seen);
}

/** `isCast`: the caller casts the inputs. */
function caseWith(title: string, precision: DsConfig, isCast: boolean, seen: string[]): Case {
  return {
    name: `${title}: inputs arrive as ${seen.slice(0, 2)}`,
    async run(device) {
      const model = new Recorder();
      const config = {
        train_batch_size: 1,
        ...precision,
        optimizer: { type: 'AdamW' as const },
      };
      const { engine } = await initialize({ model, config, device });
      const dtype = isCast ? 'f16' : 'f32';
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

const autocast = (dtype: 'torch.bfloat16' | 'float16'): DsConfig => ({
  torch_autocast: { enabled: true, dtype },
});

export const cases: Case[] = [
  caseOf(true, true, ['f16', 'f16']),
  caseOf(false, true, ['f16', 'f32']),
  caseOf(true, false, ['f32', 'f32']),
  caseWith('torch_autocast in bf16', autocast('torch.bfloat16'), false, ['bf16', 'bf16']),
  caseWith('torch_autocast in fp16', autocast('float16'), false, ['f16', 'f16']),
];
