// initCompression(): a model made ready for the section compression_training of a configuration.

import type { DsConfig } from '../types/config.js';
import { type CompressionSection, compress, isOn } from './compression/index.js';
import { readConfig, resolveConfig } from './config/index.js';
import { requireUnowned } from './engine/parameters/owned-parameters.js';
import type { Module } from './nn/module.js';
import { requireModule } from './nn/require-module.js';

/**
 * Gives the layers of `model` that compression_training of `config` (a path, base64 or an object)
 * names what that section asks for: weights of few values, and masks of what is pruned. They act in
 * the steps of the engine that initialize() makes next, with the same section. Names of parameters
 * stay; masks and scores come beside them. Before initialize(), on every rank, alike. Returns the
 * model. Throws DS_CONFIG for a section that cannot be or does not fit the model, DS_SHAPE,
 * DS_ARGUMENT for a model that is compressed already or that an engine has. Source: DeepSpeed's
 * init_compression.
 */
export function initCompression<Model extends Module>(
  model: Model,
  config: string | DsConfig,
): Model {
  requireModule('initCompression', model);
  requireUnowned(model);
  const section = sectionOf(config);
  if (isOn(section)) compress(model, section);
  return model;
}

/** The section of a configuration, whose other keys are not judged. */
function sectionOf(config: string | DsConfig): CompressionSection {
  const { compression_training = {} } = readConfig(config);
  const own = { train_micro_batch_size_per_gpu: 1, compression_training };
  return resolveConfig(own, { worldSize: 1 }).compression_training;
}
