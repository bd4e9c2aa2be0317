// Creates the content of a checkpoint: weights, optimizer state, counters, random generators and
// client state.

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
  buildCatalog,
  createNameFilter,
  optimizerShards,
  weightShards,
  wholeModel,
  wholeTensors,
} from './engine-shards.js';
import { errorCatalog, errorShards } from './rank-errors.js';

type Catalog = ReturnType<typeof buildCatalog>;

/** Options that select the content of a checkpoint. */
export interface ContentOptions {
  clientState: JsonObject;
  /** Omit frozen parameters. Default: false. */
  excludeFrozenParameters?: boolean;
}

/**
 * Returns the content of a checkpoint that this rank saves. The engine owns the tensors; the caller
 * releases its references.
 */
export function createContent(engine: EngineCore, options: ContentOptions): CheckpointContent {
  const { stage, ranks } = engine.parts;
  const { shardsWeights: sharded } = stage;
  const { shardGroup, sequenceGroup, mesh } = ranks;
  const isFirst = shardGroup.rank === 0;
  const model = MODEL.filter((axis) => !(sequenceGroup && axis === AXIS.sequence));
  const isSelected = createNameFilter(engine, !options.excludeFrozenParameters);
  const parts = sharded ? weightShards(engine, isSelected) : [];
  const wholeShards = sharded ? wholeTensors : wholeModel;
  return {
    part: ranks.isReplica ? null : { data: shardGroup.rank, model: mesh.place(...model) },
    model: isFirst ? [...parts, ...wholeShards(engine, isSelected)] : parts,
    modelIsSharded: sharded,
    optimizer: [...optimizerShards(engine), ...errorShards(engine)],
    catalog: withErrors(engine, buildCatalog(engine, isSelected)),
    state: sharedState(engine, options),
    // Ranks with tokens of the same samples share one random generator, so only the first one saves
    // it.
    rankState: (sequenceGroup?.rank ?? 0) === 0 ? rankState(engine) : null,
    // A description lets other libraries read the weights. Their formats have no tensor names for
    // adapters and 4-bit weights.
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

/** Maximum depth of nested objects, because JSON.stringify() and JSON.parse() recurse. */
const MAX_LEVELS = 1000;
/** Maximum characters of a path in an error. */
const SHOWN_CHARACTERS = 120;

/**
 * Returns a copy of `value` as JSON stores it: toJSON() applied, undefined properties removed.
 *
 * Throws DS_ARGUMENT if it is not an object, and for the first nested value that JSON would drop or
 * change. Examples: NaN, a function, a bigint, a Map, a typed array.
 */
export function jsonObject(location: string, value: unknown, example: string): JsonObject {
  const copy = copyValue(location, '', value, []);
  if (isObject(copy)) return copy;
  throw new DsError({
    code: 'DS_ARGUMENT',
    op: location,
    expected: `an object, such as ${example}`,
    got: Array.isArray(copy) ? 'an array' : String(JSON.stringify(copy)),
  });
}

/**
 * Copies `value` as JSON stores it. It is the property `name` of the last object in `outer`, its
 * ancestors.
 */
function copyValue(
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
  const ancestors = [...outer, value];
  const { toJSON } = value as Partial<JsonSource>;
  if (typeof toJSON === 'function') return callToJson(location, name, { value, toJSON, ancestors });
  if (Array.isArray(value)) {
    return Array.from(value, (item, i) => {
      const kept = copyValue(`${location}[${i}]`, `${i}`, item, ancestors);
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
    const of =
      item === undefined ? undefined : copyValue(`${location}.${key}`, key, item, ancestors);
    return [key, of] as const;
  });
  return Object.fromEntries(kept.filter(([, of]) => of !== undefined)) as JsonObject;
}

interface JsonSource {
  value: object;
  toJSON: (name: string) => unknown;
  ancestors: readonly object[];
}

/** Returns the checked result of toJSON(), or undefined. */
function callToJson(
  location: string,
  name: string,
  { value, toJSON, ancestors }: JsonSource,
): JsonValue | undefined {
  if (value instanceof Date && Number.isNaN(value.getTime())) {
    throw refusedError(location, 'an invalid Date', 'Leave it out, or save null.');
  }
  const jsonValue: unknown = toJSON.call(value, name);
  if (jsonValue === undefined) return undefined;
  // If toJSON() returns the object itself, its properties must be checked.
  return copyValue(
    location,
    name,
    jsonValue === value ? { ...value, toJSON: undefined } : jsonValue,
    ancestors,
  );
}

function refusedError(
  location: string,
  got: string,
  hint = '',
  expected = 'a value that JSON can store',
): DsError {
  const op =
    location.length > SHOWN_CHARACTERS ? `${location.slice(0, SHOWN_CHARACTERS)}...` : location;
  return new DsError({ code: 'DS_ARGUMENT', op, expected, got, hint });
}
