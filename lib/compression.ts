// initCompression() and redundancyClean(): a model made ready for the section compression_training
// of a configuration, and what is left of it afterwards.

import type { DsConfig } from '../types/config.js';
import {
  type CompressionSection,
  clean,
  compress,
  isOn,
  reduceLayers,
  requireUncompressed,
} from './compression/index.js';
import { readConfig, resolveConfig } from './config/index.js';
import { requireUnowned } from './engine/parameters/owned-parameters.js';
import type { Module } from './nn/module.js';
import { requireModule } from './nn/require-module.js';

/**
 * Gives the layers of `model` that compression_training of `config` (a path, base64 or an object)
 * names what that section asks for: weights and inputs of few values, and masks of what is pruned.
 * They act in the steps of the engine that initialize() makes next, with the same section. Names of
 * parameters stay; masks and scores come beside them. Where layer_reduction is on, layers start as
 * those of `teacherModel`. Before initialize(), on every rank, alike. Returns the model. Throws
 * DS_CONFIG for a section that cannot be or does not fit the model, DS_SHAPE, DS_ARGUMENT for a
 * model that is compressed already or that an engine has, and where the teacher is missing. Source:
 * DeepSpeed's init_compression.
 */
export function initCompression<Model extends Module>(
  model: Model,
  config: string | DsConfig,
  teacherModel: Module | null = null,
): Model {
  requireModule('initCompression', model);
  requireUnowned(model);
  const section = sectionOf(config);
  if (!isOn(section)) return model;
  requireUncompressed(model);
  if (section.layer_reduction.enabled) {
    requireModule('initCompression teacherModel, for layer_reduction', teacherModel);
    reduceLayers(model, teacherModel, section.layer_reduction);
  }
  compress(model, section);
  return model;
}

/**
 * Makes of a model that initCompression() has prepared, with the same configuration, one that
 * computes the same without: rounded weights (in target_bits) and zeros are written into the
 * layers, which are plain ones again; layers with related_modules lose the rows, columns and heads
 * that are 0. Inputs that are quantized stay so. Without compression in the section nothing
 * happens. After engine.destroy(), or once a checkpoint was loaded.
 * Returns the model. Throws DS_ARGUMENT for a model that is not compressed by that section or that
 * an engine has, DS_CONFIG where layers do not fit each other. Source: DeepSpeed's
 * redundancy_clean.
 */
export function redundancyClean<Model extends Module>(
  model: Model,
  config: string | DsConfig,
): Model {
  requireModule('redundancyClean', model);
  clean(model, sectionOf(config));
  return model;
}

/** The section of a configuration, whose other keys are not judged. */
function sectionOf(config: string | DsConfig): CompressionSection {
  const { compression_training = {} } = readConfig(config);
  const own = { train_micro_batch_size_per_gpu: 1, compression_training };
  return resolveConfig(own, { worldSize: 1 }).compression_training;
}
