// Calls under Python's names, as DeepSpeed's tutorials have them, name our method or property.
import * as library from '../../lib/index.js';
import { refusal } from '../support/refusal.js';
import { tinyModel } from './tiny-training.js';

// biome-ignore lint/suspicious/noExplicitAny: in JavaScript no types stop these mistakes.
type Untyped = any;
const { initialize, initDistributed, initInference, nn, optim } = library as Untyped;

/** The model as JavaScript has it. */
const untypedModel = (): Untyped => tinyModel();

const config = { train_micro_batch_size_per_gpu: 1, optimizer: { type: 'Adam' } };
let engine: Untyped;
let pipeline: Untyped;
let inference: Untyped;
let job: Untyped;

beforeAll(async () => {
  job = await initDistributed({ device: 'cpu' });
  ({ engine } = await initialize({ model: tinyModel(), config, device: 'cpu' }));
  const layers = [new nn.Linear(2, 2), new nn.Linear(2, 2)];
  const stages = new library.PipelineModule({ layers, lossFn: new nn.MSELoss() });
  ({ engine: pipeline } = await initialize({ model: stages, config, device: 'cpu' }));
  inference = await initInference(tinyModel(), { device: 'cpu' });
});

afterAll(async () => {
  await inference.destroy();
  for (const one of [engine, pipeline]) one.destroy();
  await job.destroy();
});

/** The name in Python, and the name that the error has. */
const METHODS: Readonly<Record<string, string>> = {
  save_checkpoint: 'saveCheckpoint()',
  load_checkpoint: 'loadCheckpoint()',
  zero_grad: 'zeroGrad()',
  save_16bit_model: 'save16bitModel()',
  save_fp16_model: 'save16bitModel()',
  train_batch_size: 'trainBatchSize()',
  train_micro_batch_size_per_gpu: 'trainMicroBatchSizePerGpu()',
  gradient_accumulation_steps: 'gradientAccumulationSteps()',
  is_gradient_accumulation_boundary: 'isGradientAccumulationBoundary()',
  set_train_batch_size: 'setTrainBatchSize()',
  get_global_grad_norm: 'getGlobalGradNorm()',
  was_step_applied: 'wasStepApplied()',
  get_lr: 'getLr()',
  no_sync: 'noSync()',
  module_state_dict: 'engine.module.stateDict()',
  deepspeed_io: 'new data.DataLoader(dataset)',
  set_custom_curriculum_learning_schedule: 'setCustomCurriculumLearningSchedule()',
};

const PROPERTIES: Readonly<Record<string, string>> = {
  global_steps: 'globalSteps',
  global_samples: 'globalSamples',
  skipped_steps: 'skippedSteps',
  loss_scale: 'lossScale',
  global_rank: 'globalRank',
  local_rank: 'localRank',
  world_size: 'worldSize',
  dp_world_size: 'dpWorldSize',
  lr_scheduler: 'lrScheduler',
  pld_theta: 'pldTheta',
  get_mom: 'engine.optimizer.groups[i].betas',
  fp16_enabled: 'engine.config.fp16.enabled',
};

const message = (name: string, instead: string): string =>
  `engine.${name}: expected ${instead}, got the name in Python. docs/coming-from-deepspeed.md lists both names.`;

test.each(Object.entries(METHODS))('engine.%s() names %s', async (name, instead) => {
  for (const one of [engine, pipeline]) {
    const { code, message: text } = await refusal(() => one[name]('checkpoints'));
    expect([code, text]).toEqual(['DS_ARGUMENT', message(name, instead)]);
  }
});

test.each(Object.entries(PROPERTIES))('engine.%s names %s', async (name, instead) => {
  for (const one of [engine, pipeline]) {
    for (const use of [() => one[name] < 100, () => (one[name] = 3)]) {
      expect((await refusal(use)).message).toBe(message(name, instead));
    }
  }
});

test.each([
  ['engine.train_batch', () => pipeline.train_batch(), 'trainBatch()'],
  ['engine.eval_batch', () => pipeline.eval_batch(), 'evalBatch()'],
  ['Module.state_dict', () => untypedModel().state_dict(), 'stateDict()'],
  ['Module.load_state_dict', () => untypedModel().load_state_dict({}), 'loadStateDict()'],
  ['Module.named_parameters', () => new nn.Linear(1, 1).named_parameters(), 'namedParameters()'],
  ['Module.zero_grad', () => new nn.Linear(1, 1).zero_grad(), 'zeroGrad()'],
  [
    'Module.register_forward_hook',
    () => untypedModel().register_forward_hook(),
    'registerForwardHook()',
  ],
  ['optimizer.zero_grad', () => new optim.Adam(tinyModel().parameters()).zero_grad(), 'zeroGrad()'],
  ['optimizer.zero_grad', () => engine.optimizer.zero_grad(), 'zeroGrad()'],
  ['optimizer.param_groups', () => engine.optimizer.param_groups[0].lr, 'groups'],
  [
    'optimizer.state_dict',
    () => new optim.Sgd(tinyModel().parameters()).state_dict(),
    'stateDict()',
  ],
  ['lrScheduler.get_lr', () => engine.lrScheduler.get_lr(), 'engine.getLr()'],
  ['lrScheduler.get_last_lr', () => engine.lrScheduler.get_last_lr(), 'engine.getLr()'],
  ['group.all_reduce', () => job.world.all_reduce(), 'allReduce()'],
  ['group.all_to_all', () => job.world.all_to_all(), 'allToAll()'],
  ['job.new_group', () => job.new_group([0]), 'newGroup()'],
  ['job.world_size', () => job.world_size, 'worldSize'],
  ['inference.generate_batch', () => inference.generate_batch([]), 'generateBatch()'],
])('the error of %s gives the name in this library', async (name, call, instead) => {
  const { message: text } = await refusal(call);
  expect(text).toContain(`${name}: expected ${instead}, got the name in Python.`);
});

test('a module may have fields and methods of these names', () => {
  class Own extends nn.Module {
    named_parameters = 5;
    state_dict(): number {
      return 7;
    }
    forward(): void {}
  }
  const own = new Own();
  expect([own.named_parameters, own.state_dict()]).toEqual([5, 7]);
  const assigned = new nn.Linear(1, 1);
  assigned.zero_grad = 3;
  expect(assigned.zero_grad).toBe(3);
});

test('the names are not enumerated', () => {
  const keys: string[] = [];
  for (const key in engine) keys.push(key);
  expect(keys).not.toContain('global_steps');
  expect(JSON.stringify(Object.keys(engine))).not.toMatch(/[a-z]_[a-z]/);
});
