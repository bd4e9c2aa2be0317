// initCompression() and redundancyClean(): prepare a model for the section compression_training of
// a configuration, and finish it afterwards.

import type { DsConfig } from '../types/config.js';
import {
  type CompressionSection,
  cleanCompression,
  compress,
  isCompressionEnabled,
  reduceLayers,
  requireUncompressed,
} from './compression/index.js';
import { readConfig, resolveConfig } from './config/index.js';
import { requireUnowned } from './engine/parameters/owned-parameters.js';
import type { Module } from './nn/module.js';
import { requireModule } from './nn/require-module.js';

/**
 * Adds the techniques of compression_training of `config` (a path, base64 or an object) to the
 * layers of `model`: weights and inputs with few values, and pruning masks. They act in the steps
 * of the engine that initialize() creates next, with the same section. Names of parameters stay;
 * masks and scores are added. With layer_reduction, layers start with the weights of
 * `teacherModel`. Call it before initialize() on every rank, with the same arguments. Returns the
 * model. Throws DS_CONFIG if the section is invalid or does not match the model, and DS_SHAPE.
 * Throws DS_ARGUMENT if the model is already compressed, if an engine owns it, or if the teacher is
 * missing. Source: DeepSpeed's init_compression.
 */
export function initCompression<Model extends Module>(
  model: Model,
  config: string | DsConfig,
  teacherModel: Module | null = null,
): Model {
  requireModule('initCompression', model);
  requireUnowned(model);
  const section = sectionOf(config);
  if (!isCompressionEnabled(section)) return model;
  requireUncompressed(model);
  if (section.layer_reduction.enabled) {
    requireModule('initCompression teacherModel, for layer_reduction', teacherModel);
    reduceLayers(model, teacherModel, section.layer_reduction);
  }
  compress(model, section);
  return model;
}

/**
 * Turns a model of initCompression() into a plain one with the same outputs, with the same
 * configuration. Writes rounded weights (in target_bits) and zeros into the layers and restores the
 * plain layers; layers with related_modules lose the rows, columns and heads that are 0. Quantized
 * inputs stay quantized. Does nothing if the section enables no compression. Call it after
 * engine.destroy(), or after loading a checkpoint. Returns the model. Throws DS_ARGUMENT for a
 * model that the section did not compress or that an engine owns, DS_CONFIG if layers do not fit
 * each other. Source: DeepSpeed's redundancy_clean.
 */
export function redundancyClean<Model extends Module>(
  model: Model,
  config: string | DsConfig,
): Model {
  requireModule('redundancyClean', model);
  cleanCompression(model, sectionOf(config));
  return model;
}

/** Returns the section of a configuration; its other keys are not validated. */
function sectionOf(config: string | DsConfig): CompressionSection {
  const { compression_training = {} } = readConfig(config);
  const own = { train_micro_batch_size_per_gpu: 1, compression_training };
  return resolveConfig(own, { worldSize: 1 }).compression_training;
}
