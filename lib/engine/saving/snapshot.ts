// The content of an engine checkpoint: weights, state, counters, random generators, client state.

import type { JsonObject, JsonValue } from '../../../types/json.js';
import type { CheckpointContent } from '../../checkpoint/index.js';
import { AXIS } from '../../comm/mesh-shape.js';
import { DsError } from '../../errors.js';
import { hyperparameters } from '../../optim/param-groups.js';
import { isPlain } from '../../peft/index.js';
import { isObject, isPlainObject } from '../../runtime/is-object.js';
import { getRandomState } from '../../tensor/index.js';
import type { EngineCore } from '../engine-parts.js';
import { MODEL } from '../ranks.js';
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
  const model = MODEL.filter((axis) => !(sequenceGroup && axis === AXIS.sequence));
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

/** Maximum nesting of objects. JSON.stringify() and JSON.parse() recurse for each level. */
const MAX_LEVELS = 1000;
/** Maximum characters of a path in an error. */
const SHOWN = 120;

/**
 * Returns a copy of `value` as JSON stores it, after toJSON() and without undefined properties.
 *
 * Throws DS_ARGUMENT if it is not an object, and for the first nested value that JSON drops or
 * changes. Examples: NaN, a function, a bigint, a Map, a typed array.
 */
export function jsonObject(location: string, value: unknown, example: string): JsonObject {
  const kept = keptOf(location, '', value, []);
  if (isObject(kept)) return kept;
  throw new DsError({
    code: 'DS_ARGUMENT',
    op: location,
    expected: `an object, such as ${example}`,
    got: Array.isArray(kept) ? 'an array' : String(JSON.stringify(kept)),
  });
}

/** `outer`: the objects that contain `value`, the property `name` of the last one. */
function keptOf(
  location: string,
  name: string,
  value: unknown,
  outer: readonly object[],
): JsonValue | undefined {
  if (value === null || typeof value === 'string' || typeof value === 'boolean') return value;
  if (typeof value === 'number') {
    if (Number.isFinite(value)) return value;
    throw refusedError(location, String(value), 'Leave it out, or save null.');
  }
  if (typeof value !== 'object') throw refusedError(location, `a ${typeof value}`);
  if (outer.includes(value)) throw refusedError(location, 'an object that contains itself');
  if (outer.length === MAX_LEVELS) {
    const expected = `at most ${MAX_LEVELS} levels of nested objects`;
    throw refusedError(location, 'a deeper object', '', expected);
  }
  const within = [...outer, value];
  const { toJSON } = value as Partial<Speaker>;
  if (typeof toJSON === 'function') return saidBy(location, name, { value, toJSON, within });
  if (Array.isArray(value)) {
    return Array.from(value, (item, i) => {
      const kept = keptOf(`${location}[${i}]`, `${i}`, item, within);
      if (kept === undefined)
        throw refusedError(`${location}[${i}]`, 'a toJSON() that returns undefined');
      return kept;
    });
  }
  if (!isPlainObject(value)) {
    const name = Object.getPrototypeOf(value).constructor?.name ?? 'class';
    throw refusedError(location, `a ${name}`, 'Save plain objects.');
  }
  const kept = Object.entries(value).map(([key, item]) => {
    const of = item === undefined ? undefined : keptOf(`${location}.${key}`, key, item, within);
    return [key, of] as const;
  });
  return Object.fromEntries(kept.filter(([, of]) => of !== undefined)) as JsonObject;
}

interface Speaker {
  value: object;
  toJSON: (name: string) => unknown;
  within: readonly object[];
}

/** Returns the checked result of toJSON(), or undefined. */
function saidBy(
  location: string,
  name: string,
  { value, toJSON, within }: Speaker,
): JsonValue | undefined {
  if (value instanceof Date && Number.isNaN(value.getTime())) {
    throw refusedError(location, 'an invalid Date', 'Leave it out, or save null.');
  }
  const jsonValue: unknown = toJSON.call(value, name);
  if (jsonValue === undefined) return undefined;
  // toJSON() returned its own object: check the properties.
  return keptOf(
    location,
    name,
    jsonValue === value ? { ...value, toJSON: undefined } : jsonValue,
    within,
  );
}

function refusedError(
  location: string,
  got: string,
  hint = '',
  expected = 'a value that JSON can store',
): DsError {
  const op = location.length > SHOWN ? `${location.slice(0, SHOWN)}...` : location;
  return new DsError({ code: 'DS_ARGUMENT', op, expected, got, hint });
}
