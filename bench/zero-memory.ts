// Measures the bytes of weights, gradients and optimizer state of a rank at each ZeRO stage, and
// compares them with the formula of the paper.

import { joinLaunched } from '../lib/comm/index.js';
import { measureMemory } from '../lib/engine/watch/memory-breakdown.js';
import { type DsConfig, initialize } from '../lib/index.js';
import * as models from '../lib/models/index.js';
import type { Device } from '../lib/runtime/device.js';
import { scope, Tensor } from '../lib/tensor/index.js';
import type { Options } from './main.js';

export type Stage = 0 | 1 | 2 | 3;

/** Bytes of model states on one rank. */
export interface StateBytes {
  weights: number;
  gradients: number;
  optimizer: number;
}

export interface MeasuredStage {
  stage: Stage;
  ranks: number;
  params: number;
  /** Elements that padding adds to the parameters, over all ranks. */
  padding: number;
  /** By how much initialize() made the device's memory in use grow. */
  allocated: number;
  measured: StateBytes;
  formula: StateBytes;
}

/**
 * Bytes of each of N ranks, with 16-bit weights and gradients and K = 12. Source: Rajbhandari et
 * al. 2020, section 5.
 */
export function paperBytes(params: number, stage: Stage, ranks: number): StateBytes {
  const part = (bytes: number, from: Stage): number =>
    (params * bytes) / (stage >= from ? ranks : 1);
  return { weights: part(2, 3), gradients: part(2, 2), optimizer: part(12, 1) };
}

function configOf(stage: Stage): DsConfig {
  return {
    train_micro_batch_size_per_gpu: 1,
    bf16: { enabled: true },
    optimizer: { type: 'AdamW', params: { lr: 1e-4 } },
    zero_optimization: {
      stage,
      stage3_max_reuse_distance: 0,
      stage3_param_persistence_threshold: 0,
    },
  };
}

/** Bytes of the distinct buffers behind `tensors`. */
function bytesBehind(tensors: readonly (Tensor | null)[]): number {
  const buffers = new Set(tensors.flatMap((tensor) => tensor?.buffer ?? []));
  return [...buffers].reduce((sum, { bytes }) => sum + bytes, 0);
}

/**
 * Runs a backward, and adds up the buffers that hold the states before and after it. `allocated` is
 * by how much the device's counter grew, which also has the rounding of blocks.
 */
export async function measureStage(
  stage: Stage,
  config: models.GPT2Config,
  device: Device,
): Promise<MeasuredStage> {
  const model = new models.GPT2(config);
  const before = device.memory.inUse;
  const { engine } = await initialize({ model, config: configOf(stage), device });
  engine.synchronize();
  const allocated = device.memory.inUse - before;
  const { units, state, stage: parts } = engine.parts;
  const wholes = units.map((unit) => unit.memory);
  const weights = bytesBehind([...wholes, ...parts.partitions.map((part) => part.weights)]);
  const tokens = scope(() => Tensor.from(Int32Array.of(1, 2, 3, 4), { shape: [1, 4], device }));
  engine.backward(engine.forward<Tensor>(tokens, tokens));
  const { gradients } = measureMemory(engine.parts).device;
  const optimizer = state.bytes.device;
  engine.step();
  tokens.dispose();
  const params = model.numParameters();
  const elements = units.reduce((sum, { layout }) => sum + layout.numel, 0);
  const ranks = engine.worldSize;
  engine.destroy();
  return {
    stage,
    ranks,
    params,
    padding: elements - params,
    allocated,
    measured: { weights, gradients, optimizer },
    formula: paperBytes(params, stage, ranks),
  };
}

const mebibytes = (bytes: number): string => (bytes / 2 ** 20).toFixed(1);
const total = ({ weights, gradients, optimizer }: StateBytes): number =>
  weights + gradients + optimizer;

/** A line of the table in docs/which-stage.md. */
export function tableRow({ stage, ranks, measured, formula }: MeasuredStage): string {
  const { weights, gradients, optimizer } = measured;
  const cells = [weights, gradients, optimizer, total(measured), total(formula)].map(mebibytes);
  return `| ${stage} | ${ranks} | ${cells.join(' | ')} |`;
}

/**
 * --model tiny [--device cpu]: stages 0 to 3 on as many ranks as the launcher has started. The
 * first one prints the table and reports.
 */
export async function zeroMemoryBench(options: Options): Promise<object | null> {
  const job = await joinLaunched(options.device ? { device: options.device } : {});
  const { device } = job.world;
  const rows: MeasuredStage[] = [];
  for (const stage of [0, 1, 2, 3] as const) {
    rows.push(await measureStage(stage, models.GPT2.config(options.model ?? 'tiny'), device));
  }
  const isFirst = job.rank === 0;
  await job.destroy();
  if (!isFirst) return null;
  console.log('| stage | ranks | weights | gradients | optimizer | all, MiB | formula, MiB |');
  console.log('| --- | --- | --- | --- | --- | --- | --- |');
  for (const row of rows) console.log(tableRow(row));
  return { rows };
}
