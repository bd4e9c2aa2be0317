// Builds the parts of an engine from a resolved configuration. Only setup/ branches on the
// configuration.
import type { ResolvedConfig } from '../../../types/config.js';
import { type Distributed, jointly } from '../../comm/index.js';
import type { Module } from '../../nn/module.js';
import { markStreamed } from '../../nn/streamed.js';
import { isPart, type Region, wholeRegion } from '../../runtime/box.js';
import { explainShortages } from '../../runtime/shortage.js';
import type { Tensor } from '../../tensor/index.js';
import { allOrNothing } from '../../tensor/scope.js';
import { adoptModel } from '../../zero/adopt.js';
import { type Collectives, takeOver } from '../../zero/collectives.js';
import { OptimizerState } from '../../zero/optimizer-state.js';
import type { WeightUnit } from '../../zero/weight-unit.js';
import { Engine } from '../engine.js';
import type { Decisions, Holdings, StepParts } from '../engine-parts.js';
import { PipelineEngine } from '../pipeline-engine.js';
import { DATA, type Ranks, ranksOf } from '../ranks.js';
import { ReleaseStack } from '../release-stack.js';
import { BatchShapes } from '../step/batch-shapes.js';
import { BatchSizes, inStages, managed, unmanaged } from '../step/batch-sizes.js';
import { curriculumOf, wholeSamples } from '../step/curriculum.js';
import { GradientCollector } from '../step/gradient-collector.js';
import { inputCastOf } from '../step/input-cast.js';
import { everyLayer, layerDroppingOf } from '../step/layer-drop.js';
import { noProgress } from '../step/progress.js';
import { StepControl } from '../step/step-control.js';
import { StepDecisions, UpdatePlanner } from '../step/step-decisions.js';
import { STOP_SIGNALS, StopRequest } from '../step/stop-request.js';
import { everyToken, requireOwnLayers, tokenDroppingOf } from '../step/token-drop.js';
import { UnitHooks } from '../step/unit-hooks.js';
import { EmptyBatches } from '../watch/empty-batches.js';
import { memoryAdvice } from '../watch/memory-advice.js';
import { buildObservers } from '../watch/monitoring.js';
import type { StepObserver } from '../watch/phase-timer.js';
import { StepWatch } from '../watch/step-watch.js';
import { requireAgreement } from './agreement.js';
import { checkpointWorld } from './checkpoint-world.js';
import { configureFromSection } from './checkpointing-section.js';
import { type Clients, findOptimizer, findSchedules } from './clients.js';
import { buildCommsLogger } from './comms-logger.js';
import { followSteps, requireCompression, requireWholeLayers } from './compression.js';
import { isCutOver, requireElementwise } from './cut-layers.js';
import { bufferDType, gradientDType, weightDType } from './dtypes.js';
import { describeState } from './dump-state.js';
import { requireExchange, sumsGradients } from './exchange.js';
import { buildScaler } from './loss-scaler.js';
import { notice, requireMemory } from './memory-promise.js';
import { describeModel, modelInfoPath } from './model-info.js';
import { buildState } from './optimizer-state.js';
import {
  columnsOf,
  keepOwn,
  openLinks,
  openTies,
  type PipelinePlan,
  planPipeline,
  type Tie,
  tieOf,
} from './pipeline.js';
import {
  choosePlanned,
  chooseUpdates,
  type Measured,
  measured,
  type Planned,
} from './planned-zero.js';
import { answeringPython } from './python-names.js';
import { idleMomentum, unusedRates } from './schedule.js';
import { shardSizes } from './shard-sizes.js';
import { sparsifyFromSection } from './sparse-attention.js';
import { splitLayers } from './split-layers.js';
import { requireSequence, splitSequence } from './split-sequence.js';
import { buildStages, shardsWeights } from './stage.js';
import { layoutFor, requireUncutState } from './state-layout.js';
import { buildTimer } from './timer.js';
import { buildUnits } from './units.js';
import { NoOptimizer, quantizeWeights } from './untrained.js';
import { requireWholeParameters } from './whole-parameters.js';

/** The caller's options and the job of the engine. */
type JoinedClients = Clients & { distributed: Distributed; planned?: Planned | null };

/** Resources created so far. The engine keeps `owned`; `undo` runs only if the build fails. */
interface Site {
  owned: ReleaseStack;
  undo: ReleaseStack;
}

/**
 * Builds this rank's engine. With `planned`, the plan chooses the configuration, and `config` is
 * its first candidate.
 *
 * - Throws DS_CONFIG without an optimizer, DS_ARGUMENT for invalid groups.
 * - Throws either one, before any change, if ranks have different inputs.
 * - Throws DS_IO if a monitor cannot write, DS_OUT_OF_MEMORY, DS_COMM.
 *
 * A failure releases all resources in reverse order. The model keeps its values. Parameters that
 * had moved into units keep the dtype of the weights. Shards of stage 3 on several ranks are lost,
 * and the next use of such a parameter throws.
 */
export async function buildEngine(
  module: Module,
  config: ResolvedConfig,
  clients: JoinedClients,
): Promise<Engine> {
  const { distributed: job, planned = null } = clients;
  const { device } = job.world;
  const infoPath = modelInfoPath(config);
  const whole = planned || infoPath !== null ? measured(module, job) : null;
  configureFromSection(config.activation_checkpointing);
  requireWholeLayers(module, config);
  const unlike = requireOwnLayers(config, module);
  if (unlike && job.rank === 0) notice(unlike);
  await splitLayers(module, config, job);
  const given = decide(module, config, clients);
  const { plan, optimizer } = given;
  quantizeWeights(module, config, optimizer);
  const layers = isCutOver(job, module);
  if (layers) requireElementwise(optimizer);
  await requireAgreement(job, given, planned?.keys);
  if (infoPath !== null && whole) await describeModel(infoPath, job, given, whole);
  const unused = clients.lrScheduler ? null : unusedRates(config.scheduler, optimizer.groups);
  if (unused && job.rank === 0) notice(unused);
  const idle = idleMomentum(given.schedules, optimizer);
  if (idle && job.rank === 0) notice(idle);
  const asked =
    planned && whole
      ? {
          ...given,
          config: await choosePlanned(job, given, planned, layers ? whole : measured(module, job)),
        }
      : given;
  const tokens = requireSequence(asked, job);
  const cuts = { stages: plan !== null, layers, tokens };
  const ranks = await ranksOf(job, cuts, shardSizes(asked.config));
  const measure = (): Measured => (layers && whole ? whole : measured(module, job));
  const chosen = { ...asked, config: await chooseUpdates(job, asked, measure) };
  const checked = plan ? asked.config : await requireMemory(job, chosen, ranks.shardGroup.size);
  const decisions = { ...asked, config: checked };
  const links = plan && (await openLinks(job, plan));
  const ties = plan ? await openTies(job, plan, optimizer) : [];
  const build = (site: Site): Engine => {
    site.undo.defer(sparsifyFromSection(module, checked.sparse_attention));
    site.owned.defer(followSteps(decisions));
    keepStages(decisions, site);
    splitSequence(module, ranks, site.owned);
    module.moveBuffers(device, bufferDType(checked));
    const observers = watchers(checked, clients, ranks, site);
    const holdings = hold(decisions, clients, { ...ranks, ties }, site);
    const stop = stopRequest(clients, ranks, site);
    const steps = assemble(decisions, { ...holdings, stop }, observers, site);
    const meeting = checkpointWorld(job);
    const parts = { ...decisions, ...holdings, ...steps, meeting, owned: site.owned };
    if (optimizer instanceof NoOptimizer) site.owned.defer(markStreamed(module));
    if (!plan || !links) return answeringPython(new Engine(parts));
    const shapes = new BatchShapes(job);
    return answeringPython(new PipelineEngine(parts, { ...plan, links, shapes, ties }));
  };
  // An error on one rank ends the waits of the others, for example a folder that only rank 0
  // writes.
  return jointly({ always: [job.world] }, () => completely(build));
}

/** Removes the layers of other pipeline stages from the model. */
function keepStages({ module, optimizer, plan }: Decisions, { undo }: Site): void {
  if (!plan) return;
  undo.defer(plan.pipeline.cut());
  keepOwn(optimizer, module);
}

/** Runs `build`. If it throws, releases its resources, both in the stacks and outside of them. */
function completely<Result>(build: (site: Site) => Result): Result {
  return allOrNothing(() => {
    const site: Site = { owned: new ReleaseStack(), undo: new ReleaseStack() };
    try {
      return build(site);
    } catch (error) {
      for (const stack of [site.owned, site.undo]) releaseAfter(stack);
      throw error;
    }
  });
}

/** The caller receives the first error, so a failed release only warns. */
function releaseAfter(stack: ReleaseStack): void {
  try {
    stack.release();
  } catch (error) {
    const reason = error instanceof Error ? error.message : String(error);
    const warning = `initialize() failed, and releasing its resources failed too: ${reason}`;
    process.emitWarning(warning, { type: 'DsWarning', code: 'DS_RELEASE' });
  }
}

/**
 * Makes the decisions that need no memory. Errors of the configuration and the caller come from
 * here, before any change.
 */
function decide(module: Module, config: ResolvedConfig, clients: JoinedClients): Decisions {
  const optimizer = findOptimizer(module, config, clients);
  const { world, mesh } = clients.distributed;
  const { device } = world;
  const plan = planPipeline(module, config, clients.distributed);
  requireCompression({ module, config, plan });
  requireExchange(optimizer, config, plan !== null);
  const progress = noProgress();
  const trains = !(optimizer instanceof NoOptimizer);
  const curriculum = trains ? curriculumOf(config, { module, progress }) : wholeSamples;
  const layerDrop = trains ? layerDroppingOf(config, { module, progress }) : everyLayer;
  const routing = trains ? tokenDroppingOf(config, { module, progress }) : everyToken;
  const cast = inputCastOf(config);
  return {
    ...{ module, config, device, optimizer },
    schedules: findSchedules(config, optimizer, clients),
    scaler: buildScaler(config),
    progress,
    batch: new BatchSizes({
      microPerDevice: config.train_micro_batch_size_per_gpu,
      accumulationSteps: config.gradient_accumulation_steps,
      dataRanks: mesh.size(...DATA),
      accumulation: accumulationOf(config, plan),
      passes: plan?.schedule.stagesPerRank,
    }),
    plan,
    // A pipeline cuts whole batches, which contain the labels.
    inputs: plan ? cast : curriculum.cutting(layerDrop.dropping(routing(cast))),
    ...{ curriculum, layerDrop },
  };
}

function accumulationOf(config: ResolvedConfig, plan: PipelinePlan | null) {
  if (plan) return inStages(plan.schedule.stagesPerRank);
  return config.managed_gradient_accumulation ? managed : unmanaged;
}

const isFirst = ({ world }: Ranks): boolean => world.rank === 0;

/** Opens monitors on the first rank, and the log of collectives on each rank. */
function watchers(
  config: ResolvedConfig,
  { monitors = [] }: Clients,
  ranks: Ranks,
  { owned, undo }: Site,
): StepObserver[] {
  const { world, dataGroup, shardGroup, broadcastGroup, tensorGroup, sequenceGroup } = ranks;
  const log = world.size > 1 ? buildCommsLogger(config.comms_logger, isFirst(ranks)) : null;
  const { replicaGroup, secondaryGroup } = ranks;
  const others = [tensorGroup, sequenceGroup, replicaGroup, secondaryGroup].filter(
    (group) => group !== null,
  );
  for (const group of new Set([world, dataGroup, shardGroup, broadcastGroup, ...others])) {
    const { logger } = group;
    undo.defer(() => {
      group.logger = logger;
    });
    group.logger = log ?? logger;
  }
  return isFirst(ranks) ? buildObservers(config, monitors, owned) : [];
}

/** Returns the stop request. It installs signal handlers at the first read. */
function stopRequest({ stopSignals }: Clients, { world }: Ranks, { owned }: Site): StopRequest {
  const { size: worldSize } = world;
  return owned.own(new StopRequest({ worldSize, signals: stopSignals ?? STOP_SIGNALS }));
}

/** Moves the model into units, and creates master weights and optimizer state. */
function hold(
  { module, config, device, optimizer, progress }: Decisions,
  { commTimer: timer }: Clients,
  { ties, ...ranks }: Ranks & { ties: readonly Tie[] },
  { owned, undo }: Site,
): Holdings {
  const { shardGroup, dataGroup } = ranks;
  const found = buildUnits(
    module,
    optimizer.groups,
    {
      ...{ dtype: weightDType(config), gradDtype: gradientDType(config), device },
      layout: layoutFor(optimizer, shardGroup.size),
      ...{ shardsWeights: shardsWeights(config, shardGroup), ties },
    },
    undo,
  );
  const { trained: units, frozen } = found;
  for (const unit of [...units, ...frozen]) owned.own(unit);
  const { stage: zeroStage } = config.zero_optimization;
  requireUncutState(optimizer, units);
  requireWholeParameters(optimizer, units, { stage: zeroStage, shards: shardGroup.size });
  const isSummed = sumsGradients(optimizer, progress);
  const stage = owned.own(
    buildStages(config, found, device, {
      ...{ group: shardGroup, timer, ties, layers: ranks.tensorGroup, isSummed },
      ...{ samples: dataGroup.size, replicas: ranks.replicaGroup, near: ranks.secondaryGroup },
    }),
  );
  const alikeTo = groupsOf(ranks);
  broadcastWhole(module, frozen, alikeTo);
  const state = new OptimizerState();
  const watched = { config, device, ranks, stage, state };
  owned.defer(explainShortages(device, () => memoryAdvice(watched)));
  const { partitions } = stage;
  buildState(state, { config, optimizer, partitions, device, group: shardGroup }, owned);
  adoptModel(stage, state, (unit, entry) => alikeTo(entry.region, tieOf(ties, unit)?.group));
  const tied = new Set(units.filter((unit) => tieOf(ties, unit)));
  return { ranks, units, tied, stage, state };
}

type GroupsOf = (region: Region, own?: Collectives) => readonly Collectives[];

/**
 * Returns the groups for the first values of a tensor: ranks with the same part; for a whole tensor
 * also the tensor-parallel ranks.
 */
function groupsOf({ broadcastGroup, tensorGroup }: Ranks): GroupsOf {
  return (region, own = broadcastGroup) =>
    tensorGroup && !isPart(region) ? [own, tensorGroup] : [own];
}

/** Copies frozen parameters in no unit, and buffers, from the first rank to the others. */
function broadcastWhole(module: Module, frozen: readonly WeightUnit[], groups: GroupsOf): void {
  const sharded = new Set(
    frozen.flatMap(({ parameters }) => parameters.map(({ parameter }) => parameter)),
  );
  const whole = module.parameters().filter((one) => !one.requiresGrad && !sharded.has(one));
  const broadcast = (tensor: Tensor, region: Region): void => {
    for (const group of groups(region)) takeOver(group, tensor);
  };
  for (const parameter of whole) broadcast(parameter, parameter.region);
  for (const [, buffer] of module.namedBuffers()) broadcast(buffer, wholeRegion(buffer.shape));
}

/** Creates the parts that run a step. */
function assemble(
  decisions: Decisions,
  { stop, ...holdings }: Holdings & Pick<StepParts, 'stop'>,
  observers: readonly StepObserver[],
  { owned }: Site,
): StepParts {
  const { module, config, device, optimizer, schedules, scaler, batch, progress } = decisions;
  const { stage, ranks } = holdings;
  const emptyBatches = owned.own(new EmptyBatches(device, ranks.world.rank));
  const prints = isFirst(ranks);
  const timer = buildTimer(config, { module, device, ...holdings }, prints);
  const watch = new StepWatch(timer, observers);
  const control = owned.own(
    new StepControl(device, stage.partitions, ranks, {
      state: holdings.state,
      maxNorm: config.gradient_clipping,
      skipNonfinite: !config.bf16.enabled || config.bf16.check_grad_overflow,
      ...{ stop, watch, batch, emptyBatches },
      columns: columnsOf(decisions.plan, stage.partitions, ranks),
    }),
  );
  const planner = new UpdatePlanner(optimizer, schedules, progress);
  const stepDecisions = new StepDecisions({
    ...{ control, scaler, progress, planner, watch, stop, emptyBatches },
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
