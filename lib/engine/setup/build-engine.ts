// Builds an engine from a resolved configuration, one call for each technique. Only files of setup/
// branch on the configuration.
import { jointly } from '../../comm/index.js';
import { configureFromSection } from '../../tensor/recompute/section.js';
import type { Engine } from '../engine.js';
import type { Decisions } from '../engine-parts.js';
import { ranksOf, shardSizes } from '../ranks.js';
import { completely, type Site } from '../release-stack.js';
import { requireAgreement } from './agreement.js';
import { batchesOf } from './batches.js';
import type { BuildInputs } from './clients.js';
import { followSteps, requireCompression, requireWholeLayers } from './compression.js';
import { type EngineKind, engineOf } from './engine-kind.js';
import { useFp8 } from './fp8.js';
import { describeModel, fitMemory, wholeModel } from './memory.js';
import { openObservers } from './observers.js';
import { findOptimizer } from './optimizer.js';
import { keepStages, openPipeline, planPipeline } from './pipeline.js';
import { buildScaler, quantizeWeights } from './precision.js';
import { findSchedules } from './schedule.js';
import { requireSequence, splitSequence } from './sequence-parallel.js';
import { sparsifyFromSection } from './sparse-attention.js';
import { stepPartsOf } from './step-parts.js';
import { isCutOver, splitLayers } from './tensor-parallel.js';
import { holdModel } from './zero.js';

/**
 * Builds the engine of this rank. Values "auto" become final on the way (fitMemory). Throws
 * DS_CONFIG, DS_ARGUMENT, DS_IO, DS_OUT_OF_MEMORY and DS_COMM. A failure releases all resources in
 * reverse order, and the model keeps its values. Parameters that were in units keep the dtype of
 * the weights. Shards (stage 3 on several ranks, or with offload_param) are lost: the next use of
 * such a parameter throws. `kind`: the class of an engine that is no pipeline; default: Engine.
 */
export async function buildEngine(given: BuildInputs, kind?: EngineKind): Promise<Engine> {
  const { module, clients, job } = given;
  const whole = wholeModel(given);
  configureFromSection(given.config.activation_checkpointing);
  requireWholeLayers(given);
  await splitLayers(given);
  const plan = planPipeline(given);
  const optimizer = findOptimizer(given, plan);
  requireCompression(given, plan);
  const asked: Decisions = {
    module,
    config: given.config,
    device: job.world.device,
    optimizer,
    plan,
    ...batchesOf(given, { optimizer, plan }),
    schedules: findSchedules(given, optimizer),
    scaler: buildScaler(given.config),
  };
  quantizeWeights(given, optimizer);
  const layers = isCutOver(job, module);
  await requireAgreement(given, asked, layers);
  await describeModel(job, asked, whole);
  const cuts = { stages: plan !== null, layers, tokens: requireSequence(asked, job) };
  const decisions = await fitMemory(given, asked, { whole, cuts });
  const { config } = decisions;
  const ranks = await ranksOf(job, cuts, shardSizes(config));
  const pipeline = await openPipeline(job, decisions);
  const build = (site: Site): Engine => {
    sparsifyFromSection(decisions, site);
    useFp8(decisions, site);
    followSteps(decisions, site);
    keepStages(decisions, site);
    splitSequence(decisions, ranks, site);
    const observers = openObservers(config, clients, ranks, site);
    const holdings = holdModel(decisions, clients, { ranks, ties: pipeline?.ties ?? [] }, site);
    const steps = stepPartsOf(decisions, holdings, { ...clients, observers }, site);
    return engineOf(
      { ...decisions, ...holdings, ...steps, owned: site.owned },
      job,
      pipeline,
      kind,
    );
  };
  // If one rank fails, the waits of the other ranks end. Example: only rank 0 writes a folder.
  return jointly({ always: [job.world] }, () => completely(build));
}
