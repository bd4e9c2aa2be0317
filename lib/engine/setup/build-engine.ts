// Builds an engine from a resolved configuration, with one call for each technique. Only files in
// setup/ branch on the configuration.
import { type Distributed, jointly } from '../../comm/index.js';
import { definePythonNames } from '../../runtime/python-names.js';
import { configureFromSection } from '../../tensor/recompute/section.js';
import { Engine } from '../engine.js';
import type { Decisions, EngineParts, OwnedParts, StepParts } from '../engine-parts.js';
import { PipelineEngine } from '../pipeline-engine.js';
import { openRanks, shardSizes } from '../ranks.js';
import { type BuildResources, buildOrRelease } from '../release-stack.js';
import { checkpointWorld } from '../saving/store-world.js';
import { BatchShapes } from '../step/batch-shapes.js';
import { GradientCollector } from '../step/gradient-collector.js';
import { StepControl } from '../step/step-control.js';
import { STOP_SIGNALS, StepDecisions, StopRequest, UpdatePlanner } from '../step/step-decisions.js';
import { assignColumns } from '../step/step-rows.js';
import { UnitHooks } from '../step/unit-hooks.js';
import { describeState } from '../watch/dump-state.js';
import { EmptyBatches } from '../watch/empty-batches.js';
import type { StepObserver } from '../watch/phase-timer.js';
import { StepWatch } from '../watch/step-watch.js';
import { requireAgreement } from './agreement.js';
import { createBatches } from './batches.js';
import type { BuildInputs, Clients } from './clients.js';
import { followSteps, requireCompression, requireWholeLayers } from './compression.js';
import { useFp8 } from './fp8.js';
import { describeModel, fitMemory, wholeModel } from './memory.js';
import { buildTimer, openObservers } from './observers.js';
import { findOptimizer } from './optimizer.js';
import { keepStages, type OpenPipeline, openPipeline, planPipeline } from './pipeline.js';
import { buildScaler, quantizeWeights } from './precision.js';
import { findSchedules } from './schedule.js';
import { requireSequence, splitSequence } from './sequence-parallel.js';
import { sparsifyFromSection } from './sparse-attention.js';
import { isCutOver, splitLayers } from './tensor-parallel.js';
import { adoptIntoUnits } from './zero.js';

/**
 * Builds the engine of this rank. Values "auto" become final on the way (fitMemory). `kind` is the
 * class of an engine that is no pipeline. Default: Engine.
 *
 * Throws DS_CONFIG, DS_ARGUMENT, DS_IO, DS_OUT_OF_MEMORY and DS_COMM. If it throws, all resources
 * are released in reverse order, and the model keeps its values. Parameters that were already in
 * units keep the dtype of the weights. Sharded weights (stage 3 on several ranks, or offload_param)
 * are lost: the next use of such a parameter throws.
 */
export async function buildEngine(inputs: BuildInputs, kind?: EngineKind): Promise<Engine> {
  const { module, clients, job } = inputs;
  const whole = wholeModel(inputs);
  configureFromSection(inputs.config.activation_checkpointing);
  requireWholeLayers(inputs);
  await splitLayers(inputs);
  const plan = planPipeline(inputs);
  const optimizer = findOptimizer(inputs, plan);
  requireCompression(inputs, plan);
  const requested: Decisions = {
    module,
    config: inputs.config,
    device: job.world.device,
    optimizer,
    plan,
    ...createBatches(inputs, { optimizer, plan }),
    schedules: findSchedules(inputs, optimizer),
    scaler: buildScaler(inputs.config),
  };
  quantizeWeights(inputs, optimizer);
  const layers = isCutOver(job, module);
  await requireAgreement(inputs, requested, layers);
  await describeModel(job, requested, whole);
  const modelAxes = { stages: plan !== null, layers, tokens: requireSequence(requested, job) };
  const decisions = await fitMemory(inputs, requested, { whole, cuts: modelAxes });
  const { config } = decisions;
  const ranks = await openRanks(job, modelAxes, shardSizes(config));
  const pipeline = await openPipeline(job, decisions);
  const build = (resources: BuildResources): Engine => {
    sparsifyFromSection(decisions, resources);
    useFp8(decisions, resources);
    followSteps(decisions, resources);
    keepStages(decisions, resources);
    splitSequence(decisions, ranks, resources);
    const observers = openObservers(config, clients, ranks, resources);
    const holdings = adoptIntoUnits(
      decisions,
      clients,
      { ranks, ties: pipeline?.ties ?? [] },
      resources,
    );
    const steps = createStepParts(decisions, holdings, { ...clients, observers }, resources);
    return createEngine(
      { ...decisions, ...holdings, ...steps, owned: resources.owned },
      job,
      pipeline,
      kind,
    );
  };
  // If one rank fails, the other ranks stop waiting for it. Example: only rank 0 cannot write a
  // folder.
  return jointly({ always: [job.world] }, () => buildOrRelease(build));
}

/** By DeepSpeed's method name: the name here, if it is not the same in camelCase. */
const PYTHON_NAMES: Readonly<Record<string, string>> = {
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

/** A class of engines that are no pipelines. */
type EngineKind = new (parts: EngineParts) => Engine;

/**
 * Returns the engine, which owns its parts. Access to a Python name on it throws an error with the
 * name here.
 */
function createEngine(
  ownParts: Omit<EngineParts, 'meeting'>,
  job: Distributed,
  pipeline: OpenPipeline | null,
  Kind: EngineKind = Engine,
): Engine {
  const parts = { ...ownParts, meeting: checkpointWorld(job) };
  const engine = pipeline
    ? new PipelineEngine(parts, { ...pipeline, shapes: new BatchShapes(job) })
    : new Kind(parts);
  const type = engine.constructor as typeof Engine;
  definePythonNames(type, { label: 'engine', fields: Object.keys(engine), others: PYTHON_NAMES });
  return engine;
}

/** Creates the parts that run a step. `observers` get a report of each step. */
function createStepParts(
  decisions: Decisions,
  holdings: OwnedParts,
  {
    stopSignals: signals = STOP_SIGNALS,
    observers,
  }: Clients & { observers: readonly StepObserver[] },
  { owned }: BuildResources,
): StepParts {
  const { module, config, device, optimizer, schedules, scaler, batch, progress } = decisions;
  const { stage, ranks } = holdings;
  const prints = ranks.world.rank === 0;
  const stop = owned.own(new StopRequest({ worldSize: ranks.world.size, signals }));
  const emptyBatches = owned.own(new EmptyBatches(device, ranks.world.rank));
  const timer = buildTimer(config, { module, device, ...holdings }, prints);
  const watch = new StepWatch(timer, observers);
  const control = owned.own(
    new StepControl(device, stage.partitions, ranks, {
      state: holdings.state,
      maxNorm: config.gradient_clipping,
      skipNonfinite: !config.bf16.enabled || config.bf16.check_grad_overflow,
      stop,
      watch,
      batch,
      emptyBatches,
      columns: assignColumns(decisions.plan?.pipeline ?? null, stage.partitions, ranks),
    }),
  );
  const planner = new UpdatePlanner(optimizer, schedules, progress);
  const stepDecisions = new StepDecisions({
    control,
    scaler,
    progress,
    planner,
    watch,
    stop,
    emptyBatches,
  });
  const counted = { batch, progress, planner, stepDecisions, watch };
  const gradients = new GradientCollector({ module, ...holdings, control, ...counted });
  const hooks = new UnitHooks(module, { ...holdings, gradients });
  if (config.dump_state && prints) {
    process.stdout.write(`${describeState({ ...decisions, ...holdings })}\n`);
  }
  owned.defer(() => watch.close());
  owned.defer(() => stepDecisions.takeLast());
  owned.defer(() => hooks.remove());
  return { planner, control, stepDecisions, gradients, hooks, watch, stop };
}
