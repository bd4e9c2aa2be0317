// Creates batch sizes, curriculum learning, layer dropping and token dropping of an engine.
import type { ResolvedConfig } from '../../../types/config.js';
import type { Optimizer } from '../../optim/optimizer.js';
import { notice } from '../../runtime/notice.js';
import type { Decisions } from '../engine-parts.js';
import { DATA } from '../ranks.js';
import {
  BatchSizes,
  managedAccumulation,
  stagedAccumulation,
  unmanagedAccumulation,
} from '../step/batch-sizes.js';
import { curriculumOf, wholeSamples } from '../step/curriculum.js';
import { inputCastOf } from '../step/inputs.js';
import { everyLayer, layerDroppingOf } from '../step/layer-drop.js';
import { noProgress } from '../step/step-decisions.js';
import { everyToken, requireOwnLayers, tokenDroppingOf } from '../step/token-drop.js';
import type { BuildInputs } from './clients.js';
import { NoOptimizer } from './optimizer.js';
import type { PipelinePlan } from './pipeline.js';

type Batches = Pick<Decisions, 'progress' | 'batch' | 'inputs' | 'curriculum' | 'layerDrop'>;

/**
 * Returns the batch sizes and the casts of forward()'s inputs. Curriculum and dropping apply only
 * if the engine trains.
 */
export function createBatches(
  { module, config, job }: BuildInputs,
  { optimizer, plan }: { optimizer: Optimizer; plan: PipelinePlan | null },
): Batches {
  const unlike = requireOwnLayers(config, module);
  if (unlike && job.rank === 0) notice(unlike);
  const progress = noProgress();
  const run = { module, progress };
  const trains = !(optimizer instanceof NoOptimizer);
  const curriculum = trains ? curriculumOf(config, run) : wholeSamples;
  const layerDrop = trains ? layerDroppingOf(config, run) : everyLayer;
  const routing = trains ? tokenDroppingOf(config, run) : everyToken;
  const cast = inputCastOf(config);
  return {
    progress,
    curriculum,
    layerDrop,
    batch: new BatchSizes({
      microPerDevice: config.train_micro_batch_size_per_gpu,
      accumulationSteps: config.gradient_accumulation_steps,
      dataRanks: job.mesh.size(...DATA),
      accumulation: createAccumulation(config, plan),
      passes: plan?.schedule.stagesPerRank,
    }),
    // A pipeline cuts whole batches itself, because a batch contains the labels.
    inputs: plan ? cast : curriculum.cutInputs(layerDrop.dropInputs(routing(cast))),
  };
}

function createAccumulation(config: ResolvedConfig, plan: PipelinePlan | null) {
  if (plan) return stagedAccumulation(plan.schedule.stagesPerRank);
  return config.managed_gradient_accumulation ? managedAccumulation : unmanagedAccumulation;
}
