// Moves a model into the units of ZeRO, and creates its master weights and optimizer state.
import type { ProcessGroup } from '../../comm/index.js';
import type { Module } from '../../nn/module.js';
import { markStreamed } from '../../nn/streamed.js';
import type { Optimizer } from '../../optim/optimizer.js';
import type { ParamGroup } from '../../optim/param-groups.js';
import { isPart, type Region, wholeRegion } from '../../runtime/box.js';
import { configError } from '../../runtime/input-errors.js';
import { explainShortages } from '../../runtime/shortage.js';
import type { Tensor } from '../../tensor/index.js';
import { adoptModel } from '../../zero/flatten-model.js';
import { OptimizerState } from '../../zero/optimizer-state.js';
import type { WeightUnit } from '../../zero/unit.js';
import { broadcastValues, type Collectives } from '../../zero/wire.js';
import type { Decisions, OwnedParts } from '../engine-parts.js';
import type { Ranks } from '../ranks.js';
import type { BuildResources } from '../release-stack.js';
import { adviseOnMemory } from '../watch/memory-advice.js';
import { type OwnGroup, type ZeroGroup, ZeroGroups } from '../zero-groups.js';
import type { Clients } from './clients.js';
import { NoOptimizer } from './optimizer.js';
import {
  layoutFor,
  requireElementwise,
  requireUncutState,
  requireWholeParameters,
  sumsGradients,
} from './optimizer-needs.js';
import { buildState } from './optimizer-state.js';
import { bufferDType, gradientDType, weightDType } from './precision.js';
import { buildStages, shardsWeights } from './stage.js';
import { buildUnits } from './units.js';

/**
 * Creates the units and the optimizer state of a model. `ties` are the parameters that pipeline
 * stages share: see OpenPipeline. Throws as buildState() does.
 */
export function adoptIntoUnits(
  { module, config, device, optimizer, progress }: Decisions,
  { commTimer: timer }: Clients,
  { ranks, ties }: { ranks: Ranks; ties: readonly OwnGroup[] },
  { owned, undo }: BuildResources,
): OwnedParts {
  const { shardGroup } = ranks;
  const zeroGroups = createZeroGroups(optimizer, ranks, ties);
  module.moveBuffers(device, bufferDType(config));
  const modelUnits = buildUnits(
    module,
    optimizer.groups,
    {
      dtype: weightDType(config),
      gradDtype: gradientDType(config),
      device,
      layout: layoutFor(optimizer, shardGroup.size),
      shardsWeights: shardsWeights(config, shardGroup),
      groups: zeroGroups,
    },
    undo,
  );
  const { trained: units, frozen } = modelUnits;
  for (const unit of [...units, ...frozen]) owned.own(unit);
  const { stage: zeroStage } = config.zero_optimization;
  requireUncutState(optimizer, units);
  requireWholeParameters(optimizer, units, { stage: zeroStage, shards: shardGroup.size });
  const isSummed = sumsGradients(optimizer, progress);
  const stage = owned.own(
    buildStages(config, modelUnits, device, {
      groups: zeroGroups,
      timer,
      tensorGroup: ranks.tensorGroup,
      isSummed,
    }),
  );
  const sources = sourcesOf(ranks);
  broadcastWhole(module, frozen, (region, parameter) =>
    sources(region, parameter ? zeroGroups.of(parameter) : zeroGroups.model),
  );
  const state = new OptimizerState();
  const watched = { config, device, ranks, stage, state };
  owned.defer(explainShortages(device, () => adviseOnMemory(watched)));
  const { partitions } = stage;
  buildState(state, { config, optimizer, partitions, device, group: shardGroup }, owned);
  adoptModel(stage, state, (unit, { region }) => sources(region, zeroGroups.ofUnit(unit)));
  if (optimizer instanceof NoOptimizer) owned.defer(markStreamed(module));
  return { ranks, units, zeroGroups, stage, state };
}

/**
 * Returns the ZeroGroups: of the model, of `ties`, and of parameter groups with a group of their
 * own.
 */
function createZeroGroups(
  optimizer: Optimizer,
  ranks: Ranks,
  ties: readonly OwnGroup[],
): ZeroGroups {
  const model = {
    name: '',
    group: ranks.shardGroup,
    dataRanks: ranks.dataGroup.size,
    spansStages: false,
    replicas: ranks.replicaGroup,
    secondary: ranks.secondaryGroup,
    source: ranks.broadcastGroup,
  };
  return new ZeroGroups(model, [...ties, ...findOwnGroups(optimizer, ranks, model)]);
}

/**
 * Returns the parameter groups with a process group in the field `zeroGroup`, such as experts. Only
 * the ranks of this group have the same values. Throws DS_CONFIG if the optimizer sums over ranks,
 * or if other axes of the mesh hold copies of the model.
 */
function findOwnGroups(
  optimizer: Optimizer,
  { mesh, replicaAxes }: Ranks,
  model: ZeroGroup,
): OwnGroup[] {
  const own = optimizer.groups.flatMap((item: ParamGroup & { zeroGroup?: ProcessGroup }, index) => {
    const { params: parameters, zeroGroup: group } = item;
    if (!group) return [];
    const name = `group ${index}`;
    const shared = { ...model, name, group, source: group, replicas: null, secondary: null };
    return [{ parameters, group: shared }];
  });
  if (own.length > 0) requireElementwise(optimizer, 'with a zeroGroup of a parameter group');
  const copies = mesh.size(...replicaAxes);
  if (own.length === 0 || copies === 1) return own;
  throw configError(
    `optimizer ${own[0]?.group.name} zeroGroup`,
    'a model without copies along other axes of the mesh',
    `${copies} copies along ${replicaAxes.join(', ')}`,
    'Divide the model along these axes, or give them one rank.',
  );
}

/**
 * Returns a function from a tensor to groups. The first rank of each group sends the tensor's
 * initial values. If tensor ranks hold a tensor whole, they also need equal values.
 */
function sourcesOf({ tensorGroup }: Ranks) {
  return (region: Region, { source }: ZeroGroup): readonly Collectives[] =>
    tensorGroup && !isPart(region) ? [source, tensorGroup] : [source];
}

/** Sends buffers, and frozen parameters that are in no unit, from the first rank to the others. */
function broadcastWhole(
  module: Module,
  frozen: readonly WeightUnit[],
  groups: (region: Region, parameter?: Tensor) => readonly Collectives[],
): void {
  const sharded = new Set(
    frozen.flatMap(({ parameters }) => parameters.map(({ parameter }) => parameter)),
  );
  for (const parameter of module.parameters()) {
    if (parameter.requiresGrad || sharded.has(parameter)) continue;
    for (const group of groups(parameter.region, parameter)) broadcastValues(group, parameter);
  }
  for (const [, buffer] of module.namedBuffers()) {
    for (const group of groups(wholeRegion(buffer.shape))) broadcastValues(group, buffer);
  }
}
