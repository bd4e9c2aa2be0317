// Bytes of a step with weights on a disk: the plan of a configuration against a run on the CPU.
import { tmpdir } from 'node:os';
import { cpu, type DsConfig, initialize, nn, resolveConfig } from '../../lib/index.js';
import {
  configuredFacts,
  predictMemory,
  setupOfConfig,
  sizesOf,
  totalBytes,
} from '../../lib/plan/index.js';
import { seed, Tensor } from '../../lib/tensor/index.js';
import { quiet } from '../support/quiet.js';

const [SEQ, CHANNELS, LAYERS] = [16, 164, 8];
const BLOCK = 12 * CHANNELS * CHANNELS + 13 * CHANNELS;

type Keys = Partial<Record<'max_in_cpu' | 'buffer_count' | 'buffer_size', number>>;

const model = (): nn.models.GPT2 => {
  seed(3);
  return new nn.models.GPT2({
    vocabSize: 256,
    maxSeq: SEQ,
    layers: LAYERS,
    heads: 4,
    channels: CHANNELS,
  });
};

const configOf = (keys: Keys): DsConfig => ({
  train_micro_batch_size_per_gpu: 1,
  bf16: { enabled: true },
  aio: { block_size: 4096 },
  optimizer: { type: 'AdamW', params: { lr: 1e-4 } },
  zero_optimization: {
    stage: 3,
    stage3_prefetch_bucket_size: 0,
    stage3_max_live_parameters: 0,
    stage3_max_reuse_distance: 0,
    stage3_param_persistence_threshold: 0,
    offload_param: { device: 'nvme', nvme_path: tmpdir(), max_in_cpu: 0, ...keys },
  },
});

async function peakOf(keys: Keys): Promise<number> {
  const device = cpu();
  await quiet(() => device.memory.inUse);
  const before = device.memory.inUse;
  const { engine } = await initialize({ model: model(), config: configOf(keys), device });
  const ids = Int32Array.from({ length: SEQ }, (_, i) => (i * 7919) % 256);
  const tokens = Tensor.from(ids, { shape: [1, SEQ], device }).keep();
  for (let step = 0; step < 3; step++) {
    device.resetPeaks();
    engine.backward(engine.forward<Tensor>(tokens, tokens));
    engine.step();
  }
  const peak = device.memory.peakInUse - before;
  engine.destroy();
  tokens.dispose();
  return peak;
}

function planKeys(keys: Keys) {
  const config = resolveConfig(configOf(keys), { worldSize: 1 });
  const setup = setupOfConfig(config, {
    optimizer: configuredFacts(config),
    isHost: true,
    seq: SEQ,
    checkpointing: false,
  });
  return predictMemory(sizesOf(model()), setup);
}

const all = BLOCK * LAYERS + 256 * CHANNELS + SEQ * CHANNELS + 2 * CHANNELS;

test.each<[Keys, onDisk: number]>([
  [{}, all],
  [{ buffer_count: 3 }, all],
  [{ buffer_count: 8, buffer_size: BLOCK / 4 }, all],
  [{ max_in_cpu: 3.5 * BLOCK }, all - 3 * BLOCK],
  [{ max_in_cpu: 100 * BLOCK }, 0],
])('%j', async (keys, onDisk) => {
  const { device, host, disk } = planKeys(keys);
  // On the CPU, host memory counts as memory of the device.
  const [got, predicted] = [await peakOf(keys), totalBytes(device) + host.buffers];
  expect(Math.abs(predicted / got - 1)).toBeLessThan(0.02);
  expect(Math.abs(disk / 2 - onDisk)).toBeLessThan(0.3 * BLOCK);
});
