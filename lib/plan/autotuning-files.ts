// Writes the JSON result files of a run under `ds --autotuning`: model info or measurements.
import { renameSync, writeFileSync } from 'node:fs';

import { onDisk } from '../runtime/on-disk.js';
import type { JobMesh } from './config-setup.js';
import type { ModelSizes } from './model-sizes.js';
import type { OptimizerFacts } from './optimizer-facts.js';
import type { Cluster } from './step-time.js';
import type { AvailableMemory } from './zero-choice.js';

/** A model in its job. The first three fields are DeepSpeed's. */
export interface ModelInfo extends OptimizerFacts {
  /** Number of parameters, each counted once, and of trained parameters. */
  num_params: number;
  trainable_num_params: number;
  /** Bytes of activations of one sample; null before a forward. */
  activation_mem_per_gpu: number | null;
  /** Tokens of a sample; null if the inputs do not have them. */
  sequence_length: number | null;
  sizes: ModelSizes;
  /** Whether `sizes` includes the activations of blocks. */
  knowsActivations: boolean;
  /** Whether blocks have activation checkpointing. */
  checkpointing: boolean;
  /** Whether the device is the CPU. */
  isHost: boolean;
  deviceName: string;
  /** The name that the driver of a GPU reports. */
  card: string;
  available: AvailableMemory;
  cluster: Cluster;
  mesh: JobMesh;
}

/** Measurements of an experiment. Names are DeepSpeed's, except the last two. */
export interface ExperimentMetrics {
  /** Milliseconds between the ends of consecutive steps. */
  latency: number;
  /** Samples per second of all ranks. */
  throughput: number;
  /** Floating-point operations per second of one device; only set if it is the metric. */
  FLOPS_per_gpu?: number;
  train_batch_size: number;
  /** Peak device memory of rank 0 in bytes. */
  peak_memory: number;
}

/**
 * Writes `result` as JSON to `file`, which appears only when it is complete. Throws DS_IO if it
 * cannot be written.
 */
export function writeResult(file: string, result: ModelInfo | ExperimentMetrics): void {
  const errorFields = {
    op: `autotuning ${file}`,
    expected: 'a file that can be written',
    hint: 'The launcher creates the folder. With several nodes, rank 0 needs access to it.',
  };
  onDisk(errorFields, () => {
    writeFileSync(`${file}.part`, `${JSON.stringify(result, null, 2)}\n`);
    renameSync(`${file}.part`, file);
  });
}
