// Moves a model into the units of ZeRO, and creates master weights and optimizer state.
import type { Module } from '../../nn/module.js';
import { markStreamed } from '../../nn/streamed.js';
import { isPart, type Region, wholeRegion } from '../../runtime/box.js';
import { explainShortages } from '../../runtime/shortage.js';
import type { Tensor } from '../../tensor/index.js';
import { adoptModel } from '../../zero/adopt.js';
import { type Collectives, takeOver } from '../../zero/collectives.js';
import { OptimizerState } from '../../zero/optimizer-state.js';
import type { WeightUnit } from '../../zero/unit.js';
import type { Decisions, Holdings } from '../engine-parts.js';
import type { Ranks } from '../ranks.js';
import type { Site } from '../release-stack.js';
import { memoryAdvice } from '../watch/memory-advice.js';
import type { Clients } from './clients.js';
import {
  layoutFor,
  requireUncutState,
  requireWholeParameters,
  sumsGradients,
} from './optimizer-needs.js';
import { buildState } from './optimizer-state.js';
import { type Tie, tieOf } from './pipeline.js';
import { bufferDType, gradientDType, weightDType } from './precision.js';
import { buildStages, shardsWeights } from './stage.js';
import { buildUnits } from './units.js';
import { NoOptimizer } from './untrained.js';

/** `ties`: parameters that several pipeline stages share. */
export function holdModel(
  { module, config, device, optimizer, progress }: Decisions,
  { commTimer: timer }: Clients,
  { ranks, ties }: { ranks: Ranks; ties: readonly Tie[] },
  { owned, undo }: Site,
): Holdings {
  const { shardGroup, dataGroup } = ranks;
  module.moveBuffers(device, bufferDType(config));
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
  const alikeTo = sourcesOf(ranks);
  broadcastWhole(module, frozen, alikeTo);
  const state = new OptimizerState();
  const watched = { config, device, ranks, stage, state };
  owned.defer(explainShortages(device, () => memoryAdvice(watched)));
  const { partitions } = stage;
  buildState(state, { config, optimizer, partitions, device, group: shardGroup }, owned);
  adoptModel(stage, state, (unit, entry) => alikeTo(entry.region, tieOf(ties, unit)?.group));
  if (optimizer instanceof NoOptimizer) owned.defer(markStreamed(module));
  const tied = new Set(units.filter((unit) => tieOf(ties, unit)));
  return { ranks, units, tied, stage, state };
}

type GroupsOf = (region: Region, own?: Collectives) => readonly Collectives[];

/**
 * Returns the groups for the first values of a tensor: ranks with the same part; for a whole tensor
 * also the tensor-parallel ranks.
 */
function sourcesOf({ broadcastGroup, tensorGroup }: Ranks): GroupsOf {
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
