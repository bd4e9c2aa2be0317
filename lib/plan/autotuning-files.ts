// What a run that `ds --autotuning` has started leaves for it, each a JSON file: what the model
// is, or what its steps took.
import { renameSync, writeFileSync } from 'node:fs';

import { onDisk } from '../runtime/on-disk.js';
import type { ModelSizes } from './model-sizes.js';
import type { Cluster } from './step-time.js';
import type { Room } from './zero-choice.js';

/** A model in its job. The first three are DeepSpeed's. */
export interface ModelInfo {
  /** Parameters, each counted once, and those that are trained. */
  num_params: number;
  trainable_num_params: number;
  /** Bytes that the forward of one sample keeps; null where none has run. */
  activation_mem_per_gpu: number | null;
  /** Tokens of a sample; null where its inputs do not say. */
  sequence_length: number | null;
  sizes: ModelSizes;
  /** Whether `sizes` has what its blocks keep. */
  knowsActivations: boolean;
  /** Whether blocks are computed again in the backward. */
  checkpointing: boolean;
  /** Bytes of the optimizer's state for each parameter that is trained. */
  stateBytes: number;
  /** Whether the device is the host's processors. */
  isHost: boolean;
  deviceName: string;
  room: Room;
  cluster: Cluster;
  mesh: {
    /** Ranks that share a batch out, and of each of these those that share its tokens. */
    data: number;
    tokens: number;
    /** Ranks that share each layer, as the plan counts it: 1 where `sizes` are of parts already. */
    layers: number;
    stages: number;
  };
}

/** What an experiment measured. Names are DeepSpeed's but for the last two. */
export interface ExperimentMetrics {
  /** Milliseconds of a step, from the end of one to the end of the next. */
  latency: number;
  /** Samples a second of all ranks. */
  throughput: number;
  /** Floating-point operations a second of one device; absent unless that is the metric. */
  FLOPS_per_gpu?: number;
  train_batch_size: number;
  /** The most bytes of its device that the first rank had in use. */
  peak_memory: number;
}

/** Replaces `file` as a whole. Throws DS_IO. */
export function writeResult(file: string, result: ModelInfo | ExperimentMetrics): void {
  const wanted = {
    op: `autotuning ${file}`,
    expected: 'a file that can be written',
    hint: 'The launcher makes the folder: of several nodes it must be one that rank 0 sees.',
  };
  onDisk(wanted, () => {
    writeFileSync(`${file}.part`, `${JSON.stringify(result, null, 2)}\n`);
    renameSync(`${file}.part`, file);
  });
}
