// A tiny GPT-2 trained on fixed random tokens; the end-to-end cases compare its runs.
import { type DsConfig, type Engine, initialize, nn, Tensor } from '../../lib/index.js';
import type { Device } from '../../lib/runtime/device.js';
import { seed } from '../../lib/tensor/index.js';

export type Precision = 'fp32' | 'bf16' | 'fp16';

type OffloadOptimizer = Exclude<
  NonNullable<Exclude<DsConfig['zero_optimization'], boolean | undefined>['offload_optimizer']>,
  string
>;

export interface TinyOptions {
  precision: Precision;
  offload: boolean;
  /** ZeRO settings in addition to the offload. */
  zero?: DsConfig['zero_optimization'];
  /** Folder of the optimizer state if `offload` keeps it on disk. Default: in host memory. */
  nvme?: string;
  /** Options of that disk. */
  disk?: { offload?: OffloadOptimizer; aio?: DsConfig['aio'] };
  /** Offload that overlaps backward. Default: false. */
  speculative?: boolean;
  /** Fraction of the optimizer state that is offloaded. Default: 1. */
  ratio?: number;
  /** Fraction of the offloaded state that the device updates. Default: 0. */
  gpuShare?: number;
  clip?: number;
  accumulation?: number;
  /** Precision of gradient accumulation. Default: that of the weights. */
  gradients?: Precision;
  checkpointing?: boolean;
  /** How checkpoints are kept. Default: on the device. */
  checkpoints?: DsConfig['activation_checkpointing'];
  dropout?: number;
  lr?: number;
  /** FP8 products of linear layers; needs bf16. Default: none. */
  fp8?: NonNullable<DsConfig['fp8']>['recipe'];
  /** AdamW's moments in bf16. Default: false. */
  bf16States?: boolean;
  /** Default: AdamW. The schedule sets its rate to lr. */
  optimizer?: DsConfig['optimizer'];
  /** Options of the model in addition to the tiny sizes. */
  model?: Partial<nn.models.GPT2Config>;
}

export const tinyShape = { batch: 3, seq: 17, vocabulary: 131 };

export function tinyConfig(options: TinyOptions): DsConfig {
  const { precision, offload, clip = 1, accumulation = 1, lr = 3e-3 } = options;
  return {
    train_micro_batch_size_per_gpu: tinyShape.batch,
    gradient_accumulation_steps: accumulation,
    gradient_clipping: clip,
    optimizer: options.optimizer ?? {
      type: 'AdamW',
      params: { lr, betas: [0.9, 0.95], weight_decay: 0.1 },
    },
    scheduler: {
      type: 'WarmupLR',
      params: { warmup_min_lr: lr / 10, warmup_max_lr: lr, warmup_num_steps: 5 },
    },
    bf16: { enabled: precision === 'bf16', bf16_optimizer_states: options.bf16States ?? false },
    ...(options.fp8 ? { fp8: { enabled: true, recipe: options.fp8 } } : {}),
    ...(precision === 'fp16' ? { fp16: { enabled: true, initial_scale_power: 20 } } : {}),
    activation_checkpointing: options.checkpoints ?? {},
    aio: options.disk?.aio ?? {},
    data_types: { grad_accum_dtype: options.gradients ?? null },
    zero_optimization: {
      stage: 1,
      ...(typeof options.zero === 'object' ? options.zero : {}),
      offload_optimizer: {
        device: !offload ? 'none' : options.nvme ? 'nvme' : 'cpu',
        nvme_path: options.nvme ?? null,
        ...options.disk?.offload,
        super_offload: options.speculative ?? false,
        ratio: options.ratio ?? 1,
        gpu_share: options.gpuShare ?? 0,
      },
    },
  };
}

export function tinyModel(
  options: Pick<TinyOptions, 'checkpointing' | 'dropout' | 'model'> = {},
): nn.models.GPT2 {
  return new nn.models.GPT2({
    vocabSize: tinyShape.vocabulary,
    maxSeq: 32,
    layers: 2,
    heads: 2,
    channels: 36,
    dropout: options.dropout ?? 0,
    activationCheckpointing: options.checkpointing ?? false,
    ...options.model,
  });
}

/** Micro-batch number `index`: tokens with a pattern, the same on every run. */
export function tinyBatch(
  index: number,
  device: Device,
  batch = tinyShape.batch,
): { tokens: Tensor; targets: Tensor } {
  const { seq, vocabulary } = tinyShape;
  const all = Int32Array.from({ length: batch * (seq + 1) }, (_, i) => {
    const row = Math.floor(i / (seq + 1));
    return (i * 7 + row * 31 + (index % 4) * 13 + (i % 5) * (i % 3)) % vocabulary;
  });
  const rows = (shift: number): Int32Array =>
    Int32Array.from({ length: batch * seq }, (_, i) => {
      const row = Math.floor(i / seq);
      return all[row * (seq + 1) + (i % seq) + shift] as number;
    });
  const shape = [batch, seq];
  return {
    tokens: Tensor.from(rows(0), { shape, device }).keep(),
    targets: Tensor.from(rows(1), { shape, device }).keep(),
  };
}

export async function tinyEngine(options: TinyOptions, device: Device): Promise<Engine> {
  seed(1234);
  const { engine } = await initialize({
    model: tinyModel(options),
    config: tinyConfig(options),
    device,
  });
  return engine;
}

/** Runs global steps [from, to) and returns every micro-batch's loss. */
export function trainTiny(engine: Engine, from: number, to: number): number[] {
  const accumulation = engine.gradientAccumulationSteps();
  const losses: number[] = [];
  for (let index = from * accumulation; index < to * accumulation; ++index) {
    const { tokens, targets } = tinyBatch(index, engine.device);
    const loss = engine.forward<Tensor>(tokens, targets);
    engine.backward(loss);
    engine.step();
    losses.push(loss.item());
    tokens.dispose();
    targets.dispose();
  }
  return losses;
}

/** The raw bits of every parameter, by name. */
export function weightBits(engine: Engine): Map<string, string> {
  engine.synchronize();
  const bits = new Map<string, string>();
  engine.withFullWeights(() => {
    for (const [name, parameter] of engine.module.namedParameters()) {
      const raw = parameter.toRaw();
      bits.set(name, Buffer.from(raw.buffer, raw.byteOffset, raw.byteLength).toString('base64'));
    }
  });
  return bits;
}

/** The raw bits of all master weights and moments. */
export function stateBits(engine: Engine): Map<string, string> {
  const { state, stage, optimizer } = engine.parts;
  const bits = new Map<string, string>();
  for (const partition of stage.partitions) {
    for (const fragment of partition.fragments) {
      const { entry } = fragment;
      const declared = optimizer.declareState(entry.group, entry.shape);
      for (const name of ['master', ...Object.keys(declared)]) {
        const lent = state.lend(partition, fragment, name);
        lent.wait();
        const { tensor } = lent;
        const { buffer, byteOffset, byteLength } = tensor.toRaw();
        bits.set(
          `${entry.name} ${name}`,
          Buffer.from(buffer, byteOffset, byteLength).toString('base64'),
        );
        tensor.release();
      }
    }
  }
  return bits;
}
