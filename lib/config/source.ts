// Selects the configuration for initialize(): its argument, or the file in the arguments of the
// program.

import type { DsConfig } from '../../types/config.js';
import { argumentError } from '../runtime/input-errors.js';
import { readDocument } from './parse.js';
import { layerRanksIn } from './partition-rules.js';
import { isSection } from './schema.js';

/** The program's arguments, as addConfigArguments or parseConfigArguments leave them. */
export interface ConfigArguments {
  /** The program's own --deepspeed. */
  readonly deepspeed?: boolean;
  /** Path of the configuration, from --deepspeed_config. */
  readonly deepspeed_config?: string;
  /** `deepspeed_config` under its camelCase name, which some parsers use. */
  readonly deepspeedConfig?: string;
  /** Old name of deepspeed_config. */
  readonly deepscale_config?: string;
}

export interface ConfigSources {
  config?: string | DsConfig | null;
  /** Old name of `config`. */
  configParams?: string | DsConfig | null;
  args?: ConfigArguments | null;
}

interface ConfigSource {
  /** The configuration for resolveConfig(). */
  config: string | DsConfig;
  /** One line for each old name that was used. */
  notices: readonly string[];
}

/**
 * Returns the configuration in `sources`, by the rules of deepspeed.initialize. Throws DS_ARGUMENT
 * unless there is exactly one source.
 */
export function configSource({ config, configParams, args }: ConfigSources): ConfigSource {
  const sources = [
    { name: 'config', value: config },
    { name: 'configParams', value: configParams },
    { name: 'args.deepspeed_config', value: args?.deepspeed_config },
    { name: 'args.deepspeedConfig', value: args?.deepspeedConfig },
    { name: 'args.deepscale_config', value: args?.deepscale_config },
  ].filter(({ value }) => value !== undefined && value !== null);
  const [only, second] = sources;
  if (!only?.value || second) {
    throw argumentError(
      'initialize',
      'one configuration: config, or args with --deepspeed_config',
      sources.length === 0 ? 'none' : sources.map(({ name }) => name).join(' and '),
      second
        ? 'Keep one of them.'
        : 'Pass `config`: the path of a ds_config.json, or the object itself.',
    );
  }
  const renamed = RENAMED[only.name];
  const notices = renamed ? [`${only.name} is deprecated: use ${renamed}.`] : [];
  return { config: only.value, notices };
}

const RENAMED: Partial<Record<string, string>> = {
  configParams: 'config',
  'args.deepscale_config': 'args.deepspeed_config',
};

/** Numbers of ranks over which a configuration splits a model. */
interface ParallelSizes {
  /** Stages of a pipeline; null if not given. */
  stages: number | null;
  /** Ranks that share each layer. */
  layers: number;
  /** Ranks that share each sample. */
  tokens: number;
}

/** Returns the parallel sizes in a configuration, unchecked. Throws as resolveConfig(). */
export function readParallelSizes(config: string | DsConfig): ParallelSizes {
  const { pipeline, tensor_parallel: section, ...others } = readDocument(config).value;
  const tokens = Number(others.sequence_parallel_size);
  const stages = isSection(pipeline) ? pipeline.stages : null;
  return {
    stages: typeof stages === 'number' ? stages : null,
    layers: layerRanksIn(section),
    tokens: Number.isInteger(tokens) && tokens > 1 ? tokens : 1,
  };
}
