// Whether a configuration fits the memory that the first run has found, and how long its step will
// take, by the arithmetic of `ds plan`.
import { checkConfig, type DsConfig, type ResolvedConfig } from '../config/index.js';
import type { Section } from '../config/schema.js';
import {
  H200,
  type ModelInfo,
  type Setup,
  setupOfConfig,
  usedShare,
  type Weights,
  weighWay,
} from '../plan/index.js';

/** What is known of a configuration before it is tried. */
export interface Fit {
  /** Why it cannot be trained; null where it can. */
  refusal: string | null;
  /** Whether its memory is there; false as well where it cannot be trained. */
  fits: boolean;
  /** Samples a second of all ranks; null where nothing foretells them. */
  samplesPerSecond: number | null;
}

/** Whether activations can be counted: otherwise the smallest micro-batch alone is sure. */
export const isCountable = ({ knowsActivations, activation_mem_per_gpu: kept }: ModelInfo) =>
  knowsActivations || kept !== null;

/** Weighs `file` for the model and the ranks of `info`. */
export function fitOf(file: Section, info: ModelInfo): Fit {
  const environment = { worldSize: info.mesh.data, autoLater: true };
  const { config, errors } = checkConfig(file as DsConfig, environment);
  if (!config) {
    const [first] = errors;
    return { refusal: first?.message ?? 'it is refused', fits: false, samplesPerSecond: null };
  }
  const { sizes, knowsActivations, isHost, cluster, room, activation_mem_per_gpu } = info;
  const weights: Weights = { sizes, knowsActivations, isHost, cluster, rates: H200, room };
  const way = weighWay({ config, setup: setupOf(config, info) }, weights);
  const kept = knowsActivations ? 0 : (activation_mem_per_gpu ?? 0);
  const device = way.device + kept * config.train_micro_batch_size_per_gpu;
  return {
    refusal: null,
    fits: usedShare({ ...way, device }, weights, room.host) <= 1,
    samplesPerSecond: way.step === null ? null : config.train_batch_size / way.step,
  };
}

function setupOf(config: ResolvedConfig, info: ModelInfo): Setup {
  const { mesh, sizes, checkpointing, stateBytes } = info;
  const { stage, mics_shard_size: copy } = config.zero_optimization;
  const all = mesh.data * mesh.tokens;
  const ranks = stage === 3 && copy > 0 ? copy : all;
  const length = info.sequence_length ?? Math.min(1024, sizes.maxSeq);
  return setupOfConfig(config, {
    ...{ ranks, copies: all / ranks, tensor: mesh.layers, stages: mesh.stages },
    ...{ checkpointing, stateBytes },
    seq: Math.max(1, Math.ceil(length / mesh.tokens)),
    // Where host memory is short, runs do without by themselves.
    speculates: false,
  });
}
