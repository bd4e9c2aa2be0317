// Bytes of a step with the keys of "activation_checkpointing": the plan against a run on the CPU.
import {
  checkpointing,
  cpu,
  type DsConfig,
  initialize,
  nn,
  resolveConfig,
} from '../../lib/index.js';
import { configuredFacts, memoryOf, setupOfConfig, sizesOf, total } from '../../lib/plan/index.js';
import { seed, Tensor } from '../../lib/tensor/index.js';
import { quiet } from '../support/quiet.js';

const [ROWS, SEQ, LAYERS] = [2, 256, 8];

const model = (): nn.models.GPT2 => {
  seed(3);
  return new nn.models.GPT2({
    ...{ vocabSize: 256, maxSeq: SEQ, layers: LAYERS, heads: 4, channels: 132 },
    activationCheckpointing: true,
  });
};

const configOf = (section: DsConfig['activation_checkpointing']): DsConfig => ({
  train_micro_batch_size_per_gpu: ROWS,
  bf16: { enabled: true },
  optimizer: { type: 'AdamW', params: { lr: 1e-4 } },
  ...(section && { activation_checkpointing: section }),
});

async function peakOf(section: DsConfig['activation_checkpointing']): Promise<number> {
  const device = cpu();
  await quiet(() => device.memory.inUse);
  const before = device.memory.inUse;
  const { engine } = await initialize({ model: model(), config: configOf(section), device });
  const ids = Int32Array.from({ length: ROWS * SEQ }, (_, i) => (i * 7919) % 256);
  const tokens = Tensor.from(ids, { shape: [ROWS, SEQ], device }).keep();
  for (let step = 0; step < 2; step++) {
    device.resetPeaks();
    engine.backward(engine.forward<Tensor>(tokens, tokens));
    engine.step();
  }
  const peak = device.memory.peakInUse - before;
  engine.destroy();
  tokens.dispose();
  checkpointing.reset();
  return peak;
}

const planned = (section: DsConfig['activation_checkpointing']) => {
  const config = resolveConfig(configOf(section), { worldSize: 1 });
  const setup = setupOfConfig(config, {
    optimizer: configuredFacts(config),
    ...{ isHost: true, seq: SEQ, checkpointing: true },
  });
  return memoryOf(sizesOf(model()), setup);
};

test.each<[string, DsConfig['activation_checkpointing']]>([
  ['every block', undefined],
  ['number_checkpoints 4', { number_checkpoints: 4 }],
  ['number_checkpoints 2', { number_checkpoints: 2 }],
  ['cpu_checkpointing', { cpu_checkpointing: true }],
  ['both', { cpu_checkpointing: true, number_checkpoints: 4 }],
])('peak of the device: %s', async (_, section) => {
  const { device, host } = planned(section);
  // On the CPU, copies in host memory count as memory of the device.
  const [got, predicted] = [await peakOf(section), total(device) + host.buffers];
  expect(Math.abs(predicted / got - 1)).toBeLessThan(0.03);
});

test('cpu_checkpointing keeps the inputs of segments in host memory', () => {
  const host = (section: DsConfig['activation_checkpointing']) => planned(section).host.buffers;
  const stream = ROWS * SEQ * 132 * 2;
  expect(host({ cpu_checkpointing: true }) - host(undefined)).toBe(LAYERS * stream);
});
