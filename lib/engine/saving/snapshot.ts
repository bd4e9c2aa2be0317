// The content of an engine checkpoint: weights, master weights, optimizer state, counters, random
// generators.
import type { JsonObject } from '../../../types/json.js';
import type { CheckpointContent } from '../../checkpoint/index.js';
import { hyperparameters } from '../../optim/param-groups.js';
import { isPlain } from '../../peft/index.js';
import { getRandomState } from '../../tensor/index.js';
import type { EngineCore } from '../engine-parts.js';
import { MODEL } from '../ranks.js';
import { jsonObject } from './client-state.js';
import {
  catalogOf,
  optimizerShards,
  wantedOf,
  weightShards,
  wholeModel,
  wholeTensors,
} from './engine-shards.js';
import { errorCatalog, errorShards } from './rank-errors.js';

type Catalog = ReturnType<typeof catalogOf>;

/** Settings of the saved content of an engine. */
export interface ContentOptions {
  clientState: JsonObject;
  /** Omit frozen parameters. Default: false. */
  excludeFrozenParameters?: boolean;
}

/**
 * Returns this rank's part of the engine's present state. The engine owns the tensors; the caller
 * releases its references.
 */
export function contentOf(engine: EngineCore, options: ContentOptions): CheckpointContent {
  const { stage, ranks } = engine.parts;
  const { shardsWeights: sharded } = stage;
  const { shardGroup, sequenceGroup, mesh } = ranks;
  const isFirst = shardGroup.rank === 0;
  const model = MODEL.filter((axis) => !(sequenceGroup && axis === 'sp'));
  const wanted = wantedOf(engine, !options.excludeFrozenParameters);
  const parts = sharded ? weightShards(engine, wanted) : [];
  const whole = sharded ? wholeTensors : wholeModel;
  return {
    part: ranks.isReplica ? null : { data: shardGroup.rank, model: mesh.place(...model) },
    model: isFirst ? [...parts, ...whole(engine, wanted)] : parts,
    modelIsSharded: sharded,
    optimizer: [...optimizerShards(engine), ...errorShards(engine)],
    catalog: withErrors(engine, catalogOf(engine, wanted)),
    state: sharedState(engine, options),
    // Ranks with tokens of the same samples share one random generator.
    rankState: (sequenceGroup?.rank ?? 0) === 0 ? rankState(engine) : null,
    // Other libraries do not know our tensor names of adapters and 4-bit weights.
    description: isPlain(engine.module) ? engine.module.describe() : null,
  };
}

function withErrors(engine: EngineCore, catalog: Catalog): Catalog {
  return { ...catalog, optimizer: new Map([...catalog.optimizer, ...errorCatalog(engine)]) };
}

function sharedState(
  { parts, progress }: EngineCore,
  { clientState, excludeFrozenParameters }: ContentOptions,
): JsonObject {
  const curriculum = parts.curriculum.state();
  return {
    ...(excludeFrozenParameters ? { excludesFrozen: true } : {}),
    progress: { ...progress },
    ...(curriculum ? { curriculum } : {}),
    scaler: parts.scaler.state(),
    schedule: parts.schedules.stateDict(),
    groups: parts.optimizer.groups.map((group) => hyperparameters(group) as unknown as JsonObject),
    clientState: jsonObject('clientState', clientState, '{ epoch: 3 }'),
  };
}

function rankState(engine: EngineCore): JsonObject {
  const companions: JsonObject = {};
  for (const [name, part] of engine.companions) {
    companions[name] = jsonObject(`companions.${name}`, part.stateDict(), '{ position: 3 }');
  }
  return { random: { ...getRandomState() }, companions };
}
