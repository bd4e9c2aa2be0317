// Lists the candidates of a search: ZeRO stages, micro-batches, and offload if memory requires it.
import { isDeepStrictEqual } from 'node:util';

import type { ResolvedConfig } from '../../types/config.js';
import { checkConfig, type DsConfig } from '../config/index.js';
import { isSection, type Section } from '../config/schema.js';
import { isChoice } from '../config/search-choices.js';
import { DsError } from '../errors.js';
import type { ModelInfo } from '../plan/index.js';
import { ownValue } from '../runtime/own-value.js';
import {
  type BatchRequest,
  chooseAccumulation,
  listMicroBatches,
  MICRO,
  STEPS,
  TOTAL,
} from './batch-choice.js';
import { type FitPrediction, isCountable, predictFit } from './memory-fit.js';

type Settings = ResolvedConfig['autotuning'];

export interface Candidate {
  /** DeepSpeed's experiment name: "z2_gas1_tmbspg4". */
  name: string;
  /** Stage and offload: "z2", "z2_offload". */
  branch: string;
  microBatch: number;
  config: Section;
  /** Predicted samples per second of all ranks, or null if unknown. */
  predicted: number | null;
}

/** A stage with its offload, and the candidates that fit. */
export interface SearchBranch {
  name: string;
  /** Candidates from the largest micro-batch that fits to the smallest. */
  candidates: readonly Candidate[];
  /** The reason if `candidates` is empty, or null. */
  reason: string | null;
}

/** The inputs of a search. */
export interface SearchSpace {
  file: Section;
  settings: Settings;
  batches: BatchRequest;
}

/** Name and zero_optimization of a branch. */
interface Placement {
  name: string;
  zero: Section;
}

const CPU_OFFLOAD = { device: 'cpu', pin_memory: true };

/** Returns zero_optimization of `file`, with the first value of each list. */
function readZeroSection({ zero_optimization: zero }: Section): Section {
  if (!isSection(zero)) return {};
  const entries = Object.entries(zero).flatMap(([key, value]) =>
    renameDeprecated(key, firstChoice(value), zero),
  );
  const section = Object.fromEntries(entries) as Section;
  const { offload_optimizer: state, offload_param: weights, ...rest } = section;
  return {
    ...rest,
    // The search chooses offload if it is "auto".
    ...(isSection(state) && state.device !== 'auto' && { offload_optimizer: state }),
    ...(isSection(weights) && weights.device !== 'auto' && { offload_param: weights }),
  };
}

/** Deprecated switches, and the sections that replace them. */
const SWITCHES: Readonly<Record<string, string>> = {
  cpu_offload: 'offload_optimizer',
  cpu_offload_param: 'offload_param',
};

/** Returns a deprecated key in its current form. If both are set, validation rejects them later. */
function renameDeprecated(key: string, value: unknown, zero: Section): [string, unknown][] {
  const newKey = ownValue(SWITCHES, key);
  if (newKey === undefined || typeof value !== 'boolean' || Object.hasOwn(zero, newKey)) {
    return [[key, value]];
  }
  return value ? [[newKey, { device: 'cpu' }]] : [];
}

const firstChoice = (value: unknown): unknown => (isChoice(value) ? value[0] : value);

/**
 * Returns the stages to search: the stages of the file, or all. On one rank, which has nothing to
 * partition, all is stage 0.
 *
 * Throws DS_CONFIG if the list is empty.
 */
function readStages({ zero_optimization: zero }: Section, ranks: number): readonly unknown[] {
  // Runs read `true` as stage 1.
  if (typeof zero === 'boolean') return [Number(zero)];
  const stage = isSection(zero) ? zero.stage : undefined;
  if (Array.isArray(stage)) {
    if (stage.length > 0) return [...new Set(stage)];
    const [op, expected] = ['zero_optimization.stage', 'at least one stage'];
    throw new DsError({ code: 'DS_CONFIG', op, expected, got: '[]' });
  }
  if (stage !== undefined && stage !== null && stage !== 'auto' && stage !== 'all') return [stage];
  return ranks > 1 ? [0, 1, 2, 3] : [0];
}

/**
 * Returns all branches with the candidates that fit. If no candidate fits and the file sets no
 * offload, adds branches with the optimizer state, and then also the weights, in host memory.
 */
export function listBranches(space: SearchSpace, info: ModelInfo): SearchBranch[] {
  const { file } = space;
  const ranks = info.mesh.data * info.mesh.tokens;
  const zero = readZeroSection(file);
  const stages = readStages(file, ranks);
  const plain = stages.map((stage) => ({ name: `z${stage}`, zero: { ...zero, stage } }));
  const branches = plain.map((placement) => createBranch(placement, space, info));
  const setsOffload = zero.offload_optimizer !== undefined || zero.offload_param !== undefined;
  if (setsOffload || info.isHost || branches.some(({ candidates }) => candidates.length > 0))
    return branches;
  // On one rank, stage 2 represents all stages that keep weights on the device.
  const isOpen = ranks === 1 && readStages(file, 2).length > 1;
  const added = offloadStages(isOpen ? [2, 3] : stages, zero);
  return [...branches, ...added.map((placement) => createBranch(placement, space, info))];
}

function offloadStages(stages: readonly unknown[], zero: Section): Placement[] {
  return stages.flatMap((stage): Placement[] => {
    if (stage === 0) return [];
    const state = { ...zero, stage, offload_optimizer: CPU_OFFLOAD };
    const both = { ...state, offload_param: CPU_OFFLOAD };
    return [
      { name: `z${stage}_offload`, zero: state },
      ...(stage === 3 ? [{ name: 'z3_offload_param', zero: both }] : []),
    ];
  });
}

function createBranch(
  { name, zero }: Placement,
  space: SearchSpace,
  info: ModelInfo,
): SearchBranch {
  const { settings, batches } = space;
  const sizes = listMicroBatches(batches, settings, info.mesh.data);
  if (info.mesh.stages > 1 && Number(zero.stage) > 1) {
    return { name, candidates: [], reason: 'a pipeline supports stages 0 and 1' };
  }
  if (sizes.length === 0) return { name, candidates: [], reason: describeMissingSize(space, info) };
  const tried = isCountable(info) || batches.only ? sizes : sizes.slice(-1);
  const predictions = tried.map((size) => {
    const config = buildConfig(space, zero, { size, ranks: info.mesh.data });
    return { size, config, fit: predictFit(config, info) };
  });
  const candidates = predictions
    .filter(({ fit }) => fit.fits)
    .map(({ size, config, fit }) => ({
      name: `${name}_gas${config[STEPS]}_tmbspg${size}`,
      branch: name,
      microBatch: size,
      config,
      predicted: fit.samplesPerSecond,
    }));
  return { name, candidates, reason: candidates.length > 0 ? null : describeMisfit(predictions) };
}

function describeMissingSize({ settings, batches }: SearchSpace, { mesh }: ModelInfo): string {
  const { max_train_batch_size: max, max_train_micro_batch_size_per_gpu: limit } = settings;
  const { min_train_batch_size: fewest } = settings;
  const { total } = batches;
  const of = `no micro-batch of ${mesh.data} ranks`;
  if (!batches.only && batches.min > limit) {
    return `${of} is within autotuning.max_train_micro_batch_size_per_gpu ${limit}`;
  }
  const atMost = `autotuning.max_train_batch_size ${max}`;
  if (total === null) {
    const atLeast = fewest > 1 ? `autotuning.min_train_batch_size ${fewest} and ` : '';
    return `${of} is within ${atLeast}${atMost}`;
  }
  if (max !== null && total > max) return `${TOTAL} ${total} is above ${atMost}`;
  return `${of} makes up ${TOTAL} ${total}`;
}

function describeMisfit(weighed: readonly { size: number; fit: FitPrediction }[]): string {
  const min = weighed.at(-1);
  return min?.fit.invalidity ?? `a micro-batch of ${min?.size} does not fit by the plan`;
}

/** Returns `file` with a branch's stage and offload, and with the micro-batch size. */
function buildConfig(
  { file, settings, batches }: SearchSpace,
  zero: Section,
  sizes: { size: number; ranks: number },
): Section {
  const { autotuning: _search, ...rest } = file;
  const steps = chooseAccumulation(batches, settings, sizes);
  return {
    ...rest,
    ...(file[TOTAL] !== undefined && { [TOTAL]: sizes.size * steps * sizes.ranks }),
    [MICRO]: sizes.size,
    [STEPS]: steps,
    zero_optimization: zero,
  };
}

/**
 * Returns configurations for the first run. The search tries them in order until one starts.
 *
 * - The highest stage, which needs the least memory.
 * - Stages 0 and 1, because some optimizers and pipelines do not support higher stages.
 *
 * Throws DS_CONFIG if all are invalid.
 */
export function listFirstConfigs({ file, batches }: SearchSpace): Section[] {
  const { autotuning: _search, [TOTAL]: _total, ...rest } = file;
  const open = readStages(file, 2)
    .map(Number)
    .sort((a, b) => b - a);
  const stages = new Set([open[0] ?? 0, ...open.filter((stage) => stage < 2)]);
  const configs = [...stages].map((stage) => ({
    ...rest,
    [MICRO]: batches.only?.at(-1) ?? batches.min,
    [STEPS]: 1,
    zero_optimization: { ...readZeroSection(file), stage },
  }));
  const checked = configs.map((item) =>
    checkConfig(item as DsConfig, { worldSize: 1, autoLater: true }).errors.at(0),
  );
  if (checked[0] && checked.every((error) => error !== undefined)) throw checked[0];
  return configs.filter((_, i) => checked[i] === undefined);
}

/**
 * ZeRO keys that a search with `fast: false` varies if the file does not set them, by stage.
 * Source: DeepSpeed, in part.
 */
const VARIED_KEYS: Readonly<Record<number, Readonly<Record<string, readonly unknown[]>>>> = {
  1: { overlap_comm: [true, false], reduce_bucket_size: [5e7, 5e8, 1e9] },
  2: { overlap_comm: [true, false], reduce_bucket_size: [5e7, 5e8, 1e9] },
  3: { overlap_comm: [true, false], prefetch_bucket_size: [5e6, 5e7, 5e8] },
};

/** Values of ZeRO keys that the file does not set, and their part of the experiment's name. */
interface KeyChoice {
  name: string;
  keys: Section;
}

/** Returns `best` with every other choice of the ZeRO keys that the file does not set. */
export function listVariants(best: Candidate, { file }: SearchSpace, info: ModelInfo): Candidate[] {
  const fileSection = isSection(file.zero_optimization) ? file.zero_optimization : {};
  const { stage } = best.config.zero_optimization as { stage: number };
  const isAlone = info.mesh.data * info.mesh.tokens === 1;
  const standard = Object.entries(isAlone ? {} : (VARIED_KEYS[stage] ?? {})).filter(
    ([key]) => fileSection[key] === undefined && fileSection[`stage3_${key}`] === undefined,
  );
  const named = Object.entries(fileSection).filter(
    ([key, value]) => key !== 'stage' && isChoice(value),
  );
  const choices = [...standard, ...named] as [string, readonly unknown[]][];
  const variants = choices.reduce<KeyChoice[]>(
    (combinations, [key, values]) =>
      combinations.flatMap(({ name, keys }) =>
        values.map((value, i) => ({
          name: `${name}_${abbreviate(key)}${isSection(value) ? i : value}`,
          keys: { ...keys, [key]: value },
        })),
      ),
    [{ name: best.name, keys: {} }],
  );
  const zero = best.config.zero_optimization as Section;
  const bestMeaning = resolveZeroSection(best.config, info);
  return variants
    .map(({ name, keys }) => ({
      ...best,
      name,
      config: { ...best.config, zero_optimization: { ...zero, ...keys } },
    }))
    .filter(({ config }) => {
      const meaning = resolveZeroSection(config, info);
      return meaning !== null && !isDeepStrictEqual(meaning, bestMeaning);
    });
}

/** Returns zero_optimization with its defaults, or null if it is invalid. */
function resolveZeroSection(config: Section, { mesh }: ModelInfo): object | null {
  const environment = { worldSize: mesh.data, autoLater: true };
  const { config: resolved } = checkConfig(config as DsConfig, environment);
  return resolved?.zero_optimization ?? null;
}

/** Abbreviates "reduce_bucket_size" to "rbs". */
const abbreviate = (key: string): string =>
  key
    .split('_')
    .map((word) => word.charAt(0))
    .join('');
