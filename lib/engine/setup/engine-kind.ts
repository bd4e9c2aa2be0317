// Creates the engine of its parts, and maps DeepSpeed's Python names to the names here.

import type { Distributed } from '../../comm/index.js';
import { answerPythonNames } from '../../runtime/python-names.js';
import { Engine } from '../engine.js';
import type { EngineParts } from '../engine-parts.js';
import { PipelineEngine } from '../pipeline-engine.js';
import { checkpointWorld } from '../saving/store-world.js';
import { BatchShapes } from '../step/batch-shapes.js';
import type { OpenPipeline } from './pipeline.js';

/** Python names without the same name in camelCase here. */
const OTHERS: Readonly<Record<string, string>> = {
  save_fp16_model: 'save16bitModel()',
  module_state_dict: 'engine.module.stateDict()',
  load_module_state_dict: 'engine.module.loadStateDict()',
  deepspeed_io: 'new data.DataLoader(dataset)',
  allreduce_gradients: 'backward(), which reduces the gradients of a step',
  get_mom: 'engine.optimizer.groups[i].betas',
  get_type: 'engine.optimizer.name',
  fp16_enabled: 'engine.config.fp16.enabled',
  bfloat16_enabled: 'engine.config.bf16.enabled',
};

/** A class of engines that are not pipelines. */
export type EngineKind = new (parts: EngineParts) => Engine;

/** Returns the engine, which owns its parts. Python's names on it throw an error. */
export function engineOf(
  own: Omit<EngineParts, 'meeting'>,
  job: Distributed,
  pipeline: OpenPipeline | null,
  Kind: EngineKind = Engine,
): Engine {
  const parts = { ...own, meeting: checkpointWorld(job) };
  const engine = pipeline
    ? new PipelineEngine(parts, { ...pipeline, shapes: new BatchShapes(job) })
    : new Kind(parts);
  const type = engine.constructor as typeof Engine;
  answerPythonNames(type, { label: 'engine', fields: Object.keys(engine), others: OTHERS });
  return engine;
}
