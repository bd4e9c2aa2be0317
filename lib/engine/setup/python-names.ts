// Python's names of an engine: what a program of DeepSpeed calls, and the name here.
import { answerPythonNames } from '../../runtime/python-names.js';
import type { Engine } from '../engine.js';

/** Names in Python whose counterpart is not the same name in camelCase. */
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

/** An engine whose Python names throw the name here. */
export function answeringPython(engine: Engine): Engine {
  const type = engine.constructor as typeof Engine;
  answerPythonNames(type, { label: 'engine', fields: Object.keys(engine), others: OTHERS });
  return engine;
}
