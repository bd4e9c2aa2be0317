// Compares the plan's bytes of optimizer state with a run on the CPU.
import { tmpdir } from 'node:os';
import { cpu, type DsConfig, initialize, nn } from '../../lib/index.js';
import { plainSetup, predictMemory, type Setup, sizesOf } from '../../lib/plan/index.js';

type Way = Partial<Pick<Setup, 'speculates' | 'gpuShare' | 'weights' | 'slots' | 'subGroup'>> &
  Pick<Setup, 'optimizer'>;
const HALVES = { optimizer: 'cpu', speculates: false } as const;
const ON_DISK = { optimizer: 'nvme', speculates: false } as const;

const allocated: [name: string, way: Way, of: readonly Setup['precision'][], wide: boolean][] = [
  ['on the device', { optimizer: 'device' }, ['bf16', 'fp32'], false],
  ['after the step decision, by host threads', HALVES, ['bf16', 'fp16', 'fp32'], false],
  ['after the step decision, by the device', { ...HALVES, gpuShare: 1 }, ['bf16'], false],
  ['after the step decision, gradients in f32', HALVES, ['bf16', 'fp16'], true],
  ['tried out', { optimizer: 'cpu', speculates: true }, ['bf16', 'fp32'], false],
  ['tried out by the device', { optimizer: 'cpu', speculates: true, gpuShare: 1 }, ['bf16'], false],
  ['with weights', { ...HALVES, weights: 'cpu' }, ['bf16', 'fp32'], false],
  ['on a disk', ON_DISK, ['bf16', 'fp32'], false],
  ['on a disk, gradients in f32', ON_DISK, ['bf16'], true],
  ['on a disk, weights in memory', { ...ON_DISK, weights: 'cpu' }, ['bf16', 'fp32'], false],
  ['on a disk, two small slots', { ...ON_DISK, slots: 2, subGroup: 640 }, ['bf16'], false],
];

test.each(
  allocated.flatMap(([name, way, of, wide]) =>
    of.map((precision) => [name, precision, way, wide] as const),
  ),
)('bytes of state are those that a run allocates: %s, %s', async (_, precision, way, wide) => {
  const model = new nn.models.GPT2({
    vocabSize: 131,
    maxSeq: 32,
    layers: 2,
    heads: 2,
    channels: 36,
  });
  const stage = way.weights === 'cpu' ? 3 : 1;
  const setup = { ...plainSetup, seq: 16, precision, wideGradients: wide, ...way, stage } as const;
  const { device, host, disk } = predictMemory(sizesOf(model), setup);
  const inMemory = { super_offload: way.speculates ?? null, gpu_share: way.gpuShare ?? 0 };
  const onDisk = { nvme_path: tmpdir(), buffer_count: setup.slots };
  const config = {
    train_micro_batch_size_per_gpu: 1,
    ...(way.optimizer === 'nvme' && { aio: { block_size: 4096 } }),
    bf16: { enabled: precision === 'bf16' },
    fp16: { enabled: precision === 'fp16' },
    data_types: { grad_accum_dtype: wide ? 'fp32' : null },
    optimizer: { type: 'AdamW', params: { lr: 1e-3 } },
    zero_optimization: {
      stage: stage as Setup['stage'],
      sub_group_size: setup.subGroup,
      offload_optimizer: {
        device: way.optimizer === 'device' ? 'none' : way.optimizer,
        ...(way.optimizer === 'cpu' && inMemory),
        ...(way.optimizer === 'nvme' && onDisk),
      },
      offload_param: { device: way.weights === 'cpu' ? 'cpu' : 'none' },
    },
  } satisfies DsConfig;
  const { engine } = await initialize({ model, config, device: cpu() });
  const { state, stage: stages } = engine.parts;
  const { bytes } = state;
  // Offloaded weights belong to their partitions.
  for (const { storage } of stages.partitions) bytes.host += storage.bytes.host;
  engine.destroy();
  const expected = { host: host.optimizer + host.buffers, disk, device: device.optimizer };
  const kinds = way.gpuShare ? (['host'] as const) : (['host', 'disk', 'device'] as const);
  for (const kind of kinds) {
    // Padding between parameters and to blocks, and the optimizer's tables.
    expect(bytes[kind]).toBeGreaterThanOrEqual(0.99 * expected[kind]);
    expect(bytes[kind]).toBeLessThanOrEqual(1.1 * expected[kind]);
  }
});
