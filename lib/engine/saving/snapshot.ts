// What a checkpoint of an engine holds: weights, master weights, optimizer state, counters and
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

/** What of an engine is saved beside its tensors, and which of these are left out. */
export interface ContentOptions {
  clientState: JsonObject;
  /** Default false. */
  excludeFrozenParameters?: boolean;
}

/**
 * This rank's part of the engine as it is now. The tensors are the engine's own: the caller
 * releases them.
 */
export function contentOf(engine: EngineCore, options: ContentOptions): CheckpointContent {
  const { stage, ranks } = engine.parts;
  const { shardsWeights: sharded } = stage;
  const { shards, tokens, mesh } = ranks;
  const isFirst = shards.rank === 0;
  const model = MODEL.filter((axis) => !(tokens && axis === 'sp'));
  const wanted = wantedOf(engine, !options.excludeFrozenParameters);
  const parts = sharded ? weightShards(engine, wanted) : [];
  const whole = sharded ? wholeTensors : wholeModel;
  return {
    part: ranks.isCopy ? null : { data: shards.rank, model: mesh.place(...model) },
    model: isFirst ? [...parts, ...whole(engine, wanted)] : parts,
    modelIsSharded: sharded,
    optimizer: [...optimizerShards(engine), ...errorShards(engine)],
    catalog: withErrors(engine, catalogOf(engine, wanted)),
    state: sharedState(engine, options),
    // Ranks with tokens of the same samples draw from one generator.
    rankState: (tokens?.rank ?? 0) === 0 ? rankState(engine) : null,
    // Nobody else knows the tensors of adapters and of weights in 4 bits by our names.
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
