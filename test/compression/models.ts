// A small model with compressible layers, sections for it, and training with an engine.
import {
  type configuration,
  type DsConfig,
  type Engine,
  initCompression,
  initialize,
  nn,
  seed,
  Tensor,
} from '../../lib/index.js';
import type { Device } from '../../lib/runtime/device.js';

export type Section = configuration.CompressionTrainingConfig;

export const [ROWS, IN, HIDDEN, OUT] = [4, 6, 9, 5];

/** A table, a block of two linear layers in a list, and a head. */
export class Small extends nn.Module {
  readonly table = new nn.Embedding(7, IN);
  readonly blocks: nn.Linear[] = [new nn.LinearGelu(IN, HIDDEN), new nn.Linear(HIDDEN, IN)];
  readonly out = new nn.Linear(IN, OUT);

  override forward(index: Tensor): Tensor {
    const rows = this.table.call(index);
    return this.out.call(this.blocks.reduce((x, block) => block.call(x), rows));
  }
}

export function small(from = 3): Small {
  seed(from);
  return new Small();
}

/** All techniques at once, with different start steps. */
export const everything: Section = {
  weight_quantization: {
    shared_parameters: {
      enabled: true,
      schedule_offset: 1,
      quantize_groups: 3,
      rounding: 'stochastic',
      fp16_mixed_quantize: { enabled: true, quantize_change_ratio: 0.25 },
    },
    different_groups: {
      first: {
        params: { start_bits: 6, target_bits: 4, quantization_period: 2 },
        modules: ['blocks', 'table'],
      },
    },
  },
  sparse_pruning: {
    shared_parameters: { enabled: true, schedule_offset: 2, method: 'topk' },
    different_groups: { one: { params: { dense_ratio: 0.6 }, modules: ['blocks\\.\\d'] } },
  },
  row_pruning: {
    shared_parameters: { enabled: true, schedule_offset: 3, method: 'l1' },
    different_groups: { one: { params: { dense_ratio: 0.5 }, modules: ['blocks.0'] } },
  },
  head_pruning: {
    shared_parameters: { enabled: true, schedule_offset: 0, num_heads: 3 },
    different_groups: { one: { params: { dense_ratio: 0.6 }, modules: ['^out$'] } },
  },
};

export const configOf = (
  compression_training: Section | undefined,
  more: DsConfig = {},
): DsConfig => ({
  train_micro_batch_size_per_gpu: ROWS,
  optimizer: { type: 'AdamW', params: { lr: 2e-2, weight_decay: 0.1 } },
  ...(compression_training ? { compression_training } : {}),
  ...more,
});

/** An engine of a small model that is compressed by `section`. */
export async function compressModel(
  section: Section,
  more: DsConfig = {},
  device: string | Device = 'cpu',
): Promise<Engine> {
  const config = configOf(section, more);
  const model = initCompression(small(), config);
  const { engine } = await initialize({ model, config, device });
  return engine;
}

/** Losses of the next `steps` updates, on this rank's part of each batch. */
export function train(engine: Engine, steps: number): number[] {
  const { device, dpRank: rank, dpWorldSize: ranks } = engine;
  const last = engine.globalSteps + steps;
  const losses: number[] = [];
  while (engine.globalSteps < last) {
    const step = engine.globalSteps;
    const ids = Int32Array.from({ length: ROWS / ranks }, (_, i) => (i * ranks + rank + step) % 7);
    const index = Tensor.from(ids, { shape: [ROWS / ranks], device });
    const loss = engine.forward<Tensor>(index).sub(0.5).square().mean();
    engine.backward(loss);
    engine.step();
    losses.push(engine.getGlobalLoss() as number);
  }
  engine.synchronize();
  return losses;
}

/** The values of all parameters and buffers, by name. */
export function valuesOf(engine: Engine): Record<string, number[]> {
  return engine.withFullWeights(() => {
    const { module } = engine;
    const named = [...module.namedParameters(), ...module.namedBuffers()];
    return Object.fromEntries(
      named.map(([name, one]) => [name, Array.from(one.to('f32').toArray())]),
    );
  });
}
