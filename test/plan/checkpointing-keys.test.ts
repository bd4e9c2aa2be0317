// Bytes of a step with the keys of "activation_checkpointing": the plan against a run on the CPU.
import {
  checkpointing,
  cpu,
  type DsConfig,
  initialize,
  nn,
  resolveConfig,
} from '../../lib/index.js';
import {
  configuredFacts,
  H200,
  predictMemory,
  predictStepTime,
  setupOfConfig,
  sizesOf,
  totalBytes,
} from '../../lib/plan/index.js';
import { seed, Tensor } from '../../lib/tensor/index.js';
import { quiet } from '../support/quiet.js';

const [ROWS, SEQ, LAYERS] = [2, 256, 8];
const ONE_GPU = { nodes: 1, devicesPerNode: 1, coresPerNode: 16, nodeLink: 50e9 };

const model = (): nn.models.GPT2 => {
  seed(3);
  return new nn.models.GPT2({
    vocabSize: 256,
    maxSeq: SEQ,
    layers: LAYERS,
    heads: 4,
    channels: 132,
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

const planSection = (section: DsConfig['activation_checkpointing']) => {
  const config = resolveConfig(configOf(section), { worldSize: 1 });
  const setup = setupOfConfig(config, {
    optimizer: configuredFacts(config),
    isHost: true,
    seq: SEQ,
    checkpointing: true,
  });
  return predictMemory(sizesOf(model()), setup);
};

test.each<[string, DsConfig['activation_checkpointing']]>([
  ['every block', undefined],
  ['number_checkpoints 4', { number_checkpoints: 4 }],
  ['number_checkpoints 2', { number_checkpoints: 2 }],
  ['cpu_checkpointing', { cpu_checkpointing: true }],
  ['both', { cpu_checkpointing: true, number_checkpoints: 4 }],
  ['keep_attention, number_checkpoints 4', { keep_attention: true, number_checkpoints: 4 }],
  ['keep_attention, cpu_checkpointing', { keep_attention: true, cpu_checkpointing: true }],
])('peak of the device: %s', async (_, section) => {
  const { device, host } = planSection(section);
  // On the CPU, copies in host memory count as memory of the device.
  const [got, predicted] = [await peakOf(section), totalBytes(device) + host.buffers];
  expect(Math.abs(predicted / got - 1)).toBeLessThan(0.03);
});

test('cpu_checkpointing keeps the inputs of segments in host memory', () => {
  const host = (section: DsConfig['activation_checkpointing']) => planSection(section).host.buffers;
  const stream = ROWS * SEQ * 132 * 2;
  expect(host({ cpu_checkpointing: true }) - host(undefined)).toBe(LAYERS * stream);
});

test('attention is kept in host memory from 8,192 tokens on, unless the key is set', () => {
  const sizes = sizesOf(
    new nn.models.GPT2({ vocabSize: 64, maxSeq: 8192, layers: 2, heads: 4, channels: 64 }),
  );
  const of = (seq: number, section: DsConfig['activation_checkpointing']) => {
    const config = resolveConfig(configOf(section), { worldSize: 1 });
    const optimizer = configuredFacts(config);
    const setup = setupOfConfig(config, { optimizer, seq, checkpointing: true });
    return { ...predictMemory(sizes, setup), ...predictStepTime(sizes, setup, H200, ONE_GPU) };
  };
  const away = { cpu_checkpointing: true };
  const [long, again] = [of(8192, away), of(8192, { ...away, keep_attention: false })];
  // The output of attention, and a log-sum-exp of each head.
  expect(long.host.buffers - again.host.buffers).toBe(2 * ROWS * 8192 * (64 * 2 + 4 * 4));
  expect(long.device).toEqual(again.device);
  expect(long.compute).toBeLessThan(again.compute);
  expect(of(8190, away)).toEqual(of(8190, { ...away, keep_attention: false }));
  expect(of(8192, undefined)).toEqual(of(8192, { keep_attention: false }));
});
