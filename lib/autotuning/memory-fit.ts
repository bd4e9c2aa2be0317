// Predicts whether a configuration fits in memory, and its step time, with the formulas of `ds
// plan`.
import { checkConfig, type DsConfig, type ResolvedConfig } from '../config/index.js';
import type { Section } from '../config/schema.js';
import {
  type ModelInfo,
  predictSetup,
  ratesNamed,
  type SelectionInputs,
  type Setup,
  setupOfConfig,
  usedShare,
} from '../plan/index.js';

/** The prediction for one configuration. */
export interface FitPrediction {
  /** The reason why the configuration is invalid, or null. */
  invalidity: string | null;
  /** Whether it fits in memory. False if it is invalid. */
  fits: boolean;
  /** Samples per second of all ranks, or null if unknown. */
  samplesPerSecond: number | null;
}

/** Whether activation memory is known. If not, only the smallest micro-batch is safe. */
export const isCountable = ({ knowsActivations, activation_mem_per_gpu: kept }: ModelInfo) =>
  knowsActivations || kept !== null;

/** Returns the prediction for `file` with the model and the ranks of `info`. */
export function predictFit(file: Section, info: ModelInfo): FitPrediction {
  const environment = { worldSize: info.mesh.data, autoLater: true };
  const { config, errors } = checkConfig(file as DsConfig, environment);
  if (!config) {
    const [first] = errors;
    return {
      invalidity: first?.message ?? 'the configuration is invalid',
      fits: false,
      samplesPerSecond: null,
    };
  }
  const { sizes, knowsActivations, isHost, cluster, available, activation_mem_per_gpu } = info;
  const rates = ratesNamed(info.card);
  const inputs: SelectionInputs = { sizes, knowsActivations, isHost, cluster, rates, available };
  const prediction = predictSetup({ config, setup: createSetup(config, info) }, inputs);
  const activations = knowsActivations ? 0 : (activation_mem_per_gpu ?? 0);
  const device = prediction.device + activations * config.train_micro_batch_size_per_gpu;
  return {
    invalidity: null,
    fits: usedShare({ ...prediction, device }, inputs, available.host) <= 1,
    samplesPerSecond: prediction.step === null ? null : config.train_batch_size / prediction.step,
  };
}

function createSetup(config: ResolvedConfig, info: ModelInfo): Setup {
  const { mesh, sizes, checkpointing } = info;
  const seq = info.sequence_length ?? Math.min(1024, sizes.maxSeq);
  // A run disables speculation if host memory is short, so the prediction does too.
  return {
    ...setupOfConfig(config, { optimizer: info, mesh, seq, checkpointing }),
    speculates: false,
  };
}
