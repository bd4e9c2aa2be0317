// Tests the predicted bytes of a step with adapters against the measured bytes on the CPU.
import { cpu, initialize, nn, peft, seed, Tensor, zero } from '../../lib/index.js';
import { quiet } from '../support/quiet.js';

const [ROWS, SEQ] = [1, 256];

type Kind = 'lora' | 'qlora' | 'dora';

function modelOf(kind: Kind, activationCheckpointing: boolean): nn.models.Llama {
  seed(1);
  const model = new nn.models.Llama({
    vocabSize: 4032,
    maxSeq: SEQ,
    layers: 4,
    channels: 256,
    heads: 8,
    kvHeads: 2,
    hidden: 896,
    activationCheckpointing,
  });
  if (kind === 'qlora') peft.quantize(model);
  const adapters = { r: 8, targetModules: 'all-linear', useDora: kind === 'dora' };
  return peft.addLora(model, adapters);
}

/** Peak bytes of two steps. */
async function peakOf(model: nn.models.Llama): Promise<number> {
  const device = cpu();
  const { engine } = await initialize({
    model,
    device,
    config: {
      train_micro_batch_size_per_gpu: ROWS,
      optimizer: { type: 'AdamW', params: { lr: 1e-4 } },
      bf16: { enabled: true },
    },
  });
  const ids = Int32Array.from({ length: ROWS * SEQ }, (_, i) => (i * 7919) % 4032);
  const tokens = Tensor.from(ids, { shape: [ROWS, SEQ], device }).keep();
  device.resetPeaks();
  for (let step = 0; step < 2; ++step) {
    engine.backward(engine.forward<Tensor>(tokens, tokens));
    engine.step();
  }
  const { peakInUse } = device.memory;
  engine.destroy();
  tokens.dispose();
  return peakInUse;
}

test.each([
  ['lora', true],
  ['lora', false],
  ['qlora', true],
  ['dora', true],
] as const)('%s, checkpointing %s', async (kind, isAgain) => {
  const model = modelOf(kind, isAgain);
  const [resident] = zero.estimateMemory(model, { microBatch: ROWS, seq: SEQ });
  const predicted = resident?.device.total as number;
  // Memory of earlier models must be freed before the peak is measured.
  await quiet(() => cpu().memory.inUse);
  const count = model
    .parameters()
    .reduce((sum, parameter) => sum + (parameter.isMaterialized ? parameter.bytes : 0), 0);
  const beside = cpu().memory.inUse - count;
  const peak = (await peakOf(model)) - beside;
  expect([kind, Math.abs(predicted / peak - 1) < 0.08]).toEqual([kind, true]);
});

test('what Llama 8B with adapters needs at 2048 tokens', () => {
  const model = new nn.models.Llama({
    vocabSize: 128_256,
    maxSeq: 2048,
    layers: 32,
    channels: 4096,
    heads: 32,
    kvHeads: 8,
    hidden: 14_336,
    activationCheckpointing: true,
  });
  const before = cpu().memory.inUse;
  peft.addLora(model, { r: 16, targetModules: 'all-linear' });
  const [resident, ...others] = zero.estimateMemory(model, { microBatch: 4, seq: 2048 });
  expect(cpu().memory.inUse).toBe(before);
  const adapters = 41_943_040;
  const { device } = resident as zero.MemoryEstimate;
  expect(device.weights).toBeCloseTo(2 * 8_030_261_248 + 4 * adapters, -3);
  // f32 adapters are their own master weights: two moments are all of the state.
  expect(device.optimizer).toBeCloseTo(8 * adapters);
  expect(device.total).toBeLessThan(22 * 2 ** 30);
  // Frozen weights are on the host with the other weights, without state.
  const away = others.at(-1) as zero.MemoryEstimate;
  expect(away.host.optimizer).toBeLessThan(12 * adapters + 1);
  expect(away.host.buffers).toBeGreaterThan(2 * 8_030_261_248);
});
