// Maps DeepSpeed's Python names of an engine to the names here.
import { answerPythonNames } from '../../runtime/python-names.js';
import type { Engine } from '../engine.js';

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

/** Makes Python names on the engine throw an error with the name here. */
export function answeringPython(engine: Engine): Engine {
  const type = engine.constructor as typeof Engine;
  answerPythonNames(type, { label: 'engine', fields: Object.keys(engine), others: OTHERS });
  return engine;
}
