// Changes each key that moves memory: the bytes that the plan predicts and the bytes that a run
// takes change together.
import assert from 'node:assert/strict';
import { tmpdir } from 'node:os';
import { measureMemory } from '../../lib/engine/watch/memory-breakdown.js';
import { checkpointing, type DsConfig, initialize, nn, seed, Tensor } from '../../lib/index.js';
import {
  factsOf,
  predictMemory,
  setupOfConfig,
  sizesOf,
  totalBytes,
} from '../../lib/plan/index.js';
import type { Device } from '../../lib/runtime/device.js';
import { required } from '../../lib/runtime/required.js';
import type { Case } from '../support/case.js';
import { quiet } from '../support/quiet.js';

type Zero = Exclude<DsConfig['zero_optimization'], boolean | undefined>;

/** A run: its configuration, and its batch and model. */
interface Run extends Omit<DsConfig, 'zero_optimization'> {
  zero?: Zero;
  rows?: number;
  /** Fraction of the longest sequence. Default: a quarter. */
  length?: number;
  /** activationCheckpointing of the model. */
  again?: boolean;
}

interface Bytes {
  device: number;
  host: number;
  disk: number;
}

/** Small on the CPU. Blocks of a GPU's allocator are larger, so its model is too. */
const shapes = {
  cpu: { vocabSize: 256, maxSeq: 64, layers: 8, heads: 4, channels: 164 },
  cuda: { vocabSize: 8192, maxSeq: 512, layers: 12, heads: 12, channels: 768 },
};

/** Elements of a block, and the fraction of half of the blocks, the last ones. */
function partsOf({ kind }: Device): Parts {
  const { channels, vocabSize, maxSeq, layers } = shapes[kind];
  const block = 12 * channels ** 2 + 13 * channels;
  const root = (vocabSize + maxSeq + 2) * channels;
  return { block, half: (layers * block) / 2 / (layers * block + root) - 1e-3 };
}

interface Parts {
  block: number;
  half: number;
}

/** Fractions of all bytes. */
const CLOSE = { cpu: 0.04, cuda: 0.05 };
/** Smallest change of a row, as a fraction of all bytes. */
const CHANGE = 0.02;
/** Largest difference between the predicted and the measured change, as a fraction of it. */
const TOGETHER = 0.15;
const STEPS = 3;

async function measureRun(run: Run, device: Device): Promise<{ got: Bytes; predicted: Bytes }> {
  const { zero, rows = 1, length = 1 / 4, again = false, ...more } = run;
  const shape = shapes[device.kind];
  if (runs.size === 0) await quiet(() => device.memory.inUse);
  const before = device.memory.inUse;
  seed(3);
  const model = new nn.models.GPT2({ ...shape, activationCheckpointing: again });
  const sizes = sizesOf(model);
  const { engine } = await initialize({
    model,
    device,
    config: {
      train_micro_batch_size_per_gpu: rows,
      bf16: { enabled: true },
      ...(JSON.stringify(run).includes('nvme') && { aio: { block_size: 4096 } }),
      optimizer: { type: 'AdamW', params: { lr: 1e-4 } },
      ...more,
      zero_optimization: { stage: 0, ...zero },
    },
  });
  const { config, optimizer, parts } = engine;
  const seq = shape.maxSeq * length;
  const ids = Int32Array.from({ length: rows * seq }, (_, i) => (i * 7919) % shape.vocabSize);
  const tokens = Tensor.from(ids, { shape: [rows, seq], device }).keep();
  // The first step learns the order of the units.
  for (let step = 0; step < STEPS; step++) {
    device.resetPeaks();
    for (let micro = 0; micro < config.gradient_accumulation_steps; micro++) {
      engine.backward(engine.forward<Tensor>(tokens, tokens));
      engine.step();
    }
  }
  const { pinned: host } = measureMemory(parts).host;
  const peak = device.memory.peakInUse - before;
  const stored = parts.stage.partitions.reduce((sum, { storage }) => sum + storage.bytes.disk, 0);
  const disk = parts.state.bytes.disk + stored;
  const got = { device: device.kind === 'cpu' ? peak - host : peak, host, disk };
  const isHost = device.kind === 'cpu';
  const setup = setupOfConfig(config, {
    optimizer: factsOf(optimizer),
    isHost,
    seq,
    checkpointing: again,
  });
  const plan = predictMemory(sizes, setup);
  const { optimizer: state, buffers } = plan.host;
  engine.destroy();
  for (const tensor of [tokens, ...model.parameters()]) tensor.dispose();
  checkpointing.reset();
  const predicted = { device: totalBytes(plan.device), host: state + buffers, disk: plan.disk };
  return { got, predicted };
}

/** Runs by device and content, because rows share their first run. */
const runs = new Map<string, ReturnType<typeof measureRun>>();

function once(run: Run, device: Device): ReturnType<typeof measureRun> {
  const key = JSON.stringify([device.name, run]);
  const found = runs.get(key) ?? measureRun(run, device);
  runs.set(key, found);
  return found;
}

const PLACES = ['device', 'host', 'disk'] as const;
const text = (bytes: Bytes): string => PLACES.map((place) => bytes[place].toFixed(0)).join(', ');

async function check(row: Row, device: Device): Promise<void> {
  const parts = partsOf(device);
  const [from, to] = [await once(row.from(parts), device), await once(row.to(parts), device)];
  const log = [from.got, to.got, from.predicted, to.predicted].map(text).join(' | ');
  for (const { got, predicted } of [from, to]) {
    const allowed = CLOSE[device.kind] * (got.device + got.host);
    for (const place of PLACES) {
      const off = Math.abs(predicted[place] - got[place]);
      assert.ok(off <= allowed, `${row.key}, ${place}: ${log}`);
    }
  }
  const moves = PLACES.map((place) => to.got[place] - from.got[place]);
  const moved = moves.reduce((sum, value) => sum + Math.abs(value), 0);
  assert.ok(moved > CHANGE * (from.got.device + from.got.host), `${row.key} moves nothing: ${log}`);
  PLACES.forEach((place, i) => {
    const off = Math.abs(to.predicted[place] - from.predicted[place] - required(moves[i]));
    assert.ok(off <= TOGETHER * moved, `${row.key}, change of ${place}: ${log}`);
  });
}

type Sized = (parts: Parts) => Run;

interface Row {
  key: string;
  from: Sized;
  to: Sized;
  onGpu?: boolean;
}

const row = (key: string, from: Sized, to: Sized, onGpu = false): Row => ({ key, from, to, onGpu });
const of =
  (run: Run): Sized =>
  () =>
    run;

const DISK = { device: 'nvme', nvme_path: tmpdir() } as const;
const HOST = { device: 'cpu', super_offload: false, gpu_share: 0 } as const;
const plain = of({});
const optimizer = (
  more: Exclude<Zero['offload_optimizer'], string | undefined>,
  rest: Run = {},
): Run => ({ ...rest, zero: { stage: 1, ...rest.zero, offload_optimizer: { ...HOST, ...more } } });
const onHost = of(optimizer({}));
const tried = of(optimizer({ super_offload: true }));
const stateOnDisk = (more: object, zero: Zero = {}): Run => ({
  zero: { stage: 1, ...zero, offload_optimizer: { ...DISK, ...more } },
});
/** Weights are gathered one unit at a time. */
const FRUGAL: Zero = {
  stage: 3,
  stage3_prefetch_bucket_size: 0,
  stage3_max_live_parameters: 0,
  stage3_max_reuse_distance: 0,
  stage3_param_persistence_threshold: 0,
};
const weights = (param: object, zero: Zero = {}): Run => ({
  zero: { ...FRUGAL, ...zero, offload_param: { device: 'cpu', ...param } },
});
const weightsOnDisk = (more: object): Run => weights({ ...DISK, max_in_cpu: 0, ...more });
const wide: Run = { rows: 4, length: 1 };
const again: Run = { ...wide, again: true };

const rows: readonly Row[] = [
  row('bf16.enabled', of(wide), of({ ...wide, bf16: { enabled: false } }), true),
  row(
    'fp16.enabled',
    of({ ...wide, bf16: { enabled: false } }),
    of({ ...wide, bf16: { enabled: false }, fp16: { enabled: true } }),
  ),
  row(
    'bf16.bf16_optimizer_states',
    plain,
    of({ bf16: { enabled: true, bf16_optimizer_states: true } }),
  ),
  row('data_types.grad_accum_dtype', plain, of({ data_types: { grad_accum_dtype: 'fp32' } }), true),
  row(
    'grad_accum_dtype, offloaded',
    onHost,
    of(optimizer({}, { data_types: { grad_accum_dtype: 'fp32' } })),
  ),
  row('optimizer.type', plain, of({ optimizer: { type: 'Lion', params: { lr: 1e-4 } } })),
  row(
    'optimizer.type, 8 bits',
    plain,
    of({ optimizer: { type: 'AdamW8bit', params: { lr: 1e-4 } } }),
  ),
  row(
    'optimizer.type, whole masters',
    onHost,
    of(optimizer({}, { optimizer: { type: 'Lion', params: { lr: 1e-4 } } })),
  ),
  row('train_micro_batch_size_per_gpu', of(wide), of({ ...wide, rows: 8 }), true),
  row('length of a sample', of(wide), of({ ...wide, length: 1 / 2 })),
  row('gradient_accumulation_steps', onHost, of(optimizer({}, { gradient_accumulation_steps: 2 }))),
  row('activationCheckpointing', of(wide), of(again), true),
  row(
    'activation_checkpointing.number_checkpoints',
    of(again),
    of({ ...again, activation_checkpointing: { number_checkpoints: 2 } }),
  ),
  row('offload_optimizer.device', plain, onHost, true),
  row('offload_optimizer.device, nvme', onHost, of(stateOnDisk({}))),
  row('offload_optimizer.ratio', onHost, ({ half }) => optimizer({ ratio: half }), true),
  row('offload_optimizer.super_offload', onHost, tried, true),
  row('offload_optimizer.gpu_share', onHost, of(optimizer({ gpu_share: 1 }))),
  row('gpu_share, speculative', tried, of(optimizer({ super_offload: true, gpu_share: 1 })), true),
  row('sub_group_size, windows', of(optimizer({ gpu_share: 1 })), ({ block }) =>
    optimizer({ gpu_share: 1 }, { zero: { sub_group_size: block / 4 } }),
  ),
  row('sub_group_size, slots', of(stateOnDisk({})), ({ block }) =>
    stateOnDisk({}, { sub_group_size: block / 4 }),
  ),
  row('offload_optimizer.buffer_count', of(stateOnDisk({})), of(stateOnDisk({ buffer_count: 2 }))),
  row('offload_param.device', of({ zero: { stage: 3 } }), of(weights({}))),
  row(
    'offload_param.device, with state',
    onHost,
    of({ zero: { ...FRUGAL, offload_optimizer: HOST, offload_param: { device: 'cpu' } } }),
  ),
  row('offload_param.device, nvme', of(weights({})), of(weightsOnDisk({}))),
  row('offload_param.max_in_cpu', of(weightsOnDisk({})), ({ block }) =>
    weightsOnDisk({ max_in_cpu: 3.5 * block }),
  ),
  row('offload_param.buffer_count', of(weightsOnDisk({})), of(weightsOnDisk({ buffer_count: 2 }))),
  row('offload_param.buffer_size', of(weightsOnDisk({})), ({ block }) =>
    weightsOnDisk({ buffer_size: block / 4 }),
  ),
];

export const cases: Case[] = rows.map((row) => ({
  name: `the plan moves with ${row.key}`,
  run: (device) => check(row, device),
  skip: ({ kind }) => (kind === 'cpu' || row.onGpu ? null : 'measured on the CPU'),
}));
