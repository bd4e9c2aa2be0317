// Checks that a checkpoint fits the model, the optimizer and the groups of an engine.
import type { Checkpoint } from '../../checkpoint/index.js';
import { DsError } from '../../errors.js';
import { hintForNames, OTHER_MODEL } from '../../nn/name-mismatch.js';
import { isFloating } from '../../runtime/dtype.js';
import { describe } from '../../runtime/view.js';
import type { Tensor } from '../../tensor/index.js';
import type { EngineCore } from '../engine-parts.js';
import { entriesOf, keptState, stateKey } from './engine-shards.js';
import type { SavedState } from './host-state.js';
import { isRankError } from './rank-errors.js';

/** The option that loads only matching tensors, for hints. */
const LENIENT = '{ loadModuleStrict: false }';

type Outline = Pick<Tensor, 'dtype' | 'shape'>;

/** Returns whether the checkpoint has a weight or buffer of this name. */
export const isPresent = (checkpoint: Checkpoint, name: string): boolean =>
  checkpoint.tensors('model').has(name);

/** Yields dtype and whole shape of the tensors that this rank holds, by name. */
function* wholeTensors({ module }: EngineCore): Generator<[name: string, Outline]> {
  for (const [name, parameter] of module.namedParameters()) {
    yield [name, { dtype: parameter.dtype, shape: parameter.region.whole }];
  }
  yield* module.namedBuffers();
}

/** Returns the names in the checkpoint that this rank does not have. */
export function unknownNames(engine: EngineCore, checkpoint: Checkpoint): string[] {
  const known = new Set(Array.from(wholeTensors(engine), ([name]) => name));
  return [...checkpoint.tensors('model').keys()].filter((name) => !known.has(name));
}

/**
 * Throws DS_CHECKPOINT if the checkpoint has a tensor that no rank has. `unknown`: by rank, the
 * names that it does not have.
 */
export function requireKnown(checkpoint: Checkpoint, unknown: readonly string[][]): void {
  const [first = [], ...others] = unknown;
  const unmatched = others.reduce((names, other) => {
    const otherNames = new Set(other);
    return names.filter((name) => otherNames.has(name));
  }, first);
  if (unmatched.length === 0) return;
  const got = `${unmatched.length} more, "${unmatched[0]}" among them`;
  const hint = hintForNames({ missing: [], unexpected: unmatched }, LENIENT);
  throw otherModelError(checkpoint.path, 'only tensors of this model', got, hint);
}

/**
 * Returns the names of the frozen parameters if the checkpoint was saved without them, else an
 * empty list.
 */
function frozenNames(engine: EngineCore, { state }: Checkpoint): ReadonlySet<string> {
  if (state.excludesFrozen !== true) return new Set();
  const trained = new Set(entriesOf(engine).map(({ name }) => name));
  const names = Array.from(engine.module.namedParameters(), ([name]) => name);
  return new Set(names.filter((name) => !trained.has(name)));
}

/**
 * Throws DS_CHECKPOINT unless the checkpoint has all tensors of this rank with their shapes.
 * Without `strict`, tensors may be missing. Frozen tensors may be missing if
 * excludeFrozenParameters omitted them.
 */
export function requireSameModel(
  engine: EngineCore,
  checkpoint: Checkpoint,
  strict: boolean,
): void {
  const saved = checkpoint.tensors('model');
  const ownTensors = [...wholeTensors(engine)];
  const mayLack = frozenNames(engine, checkpoint);
  const missing = ownTensors.filter(([name]) => !saved.has(name) && !mayLack.has(name));
  const [absent] = missing;
  if (strict && absent) {
    const got = `a checkpoint without ${missing.length} of this model's tensors`;
    const names = missing.map(([name]) => name);
    const unexpected = unknownNames(engine, checkpoint);
    const hint = hintForNames({ missing: names, unexpected }, LENIENT);
    throw otherModelError(`${checkpoint.path}: ${absent[0]}`, describe(absent[1]), got, hint);
  }
  for (const [name, tensor] of ownTensors) {
    const info = saved.get(name);
    if (!info) continue;
    if (isCompatible(info, tensor)) continue;
    throw otherModelError(`${checkpoint.path}: ${name}`, describe(tensor), describe(info));
  }
}

/**
 * Throws DS_CHECKPOINT unless optimizer state has the shapes that the optimizer declares. Dtypes
 * may differ if both are floating.
 */
export function requireSameShapes(engine: EngineCore, checkpoint: Checkpoint): void {
  const expected = new Map<string, Record<string, Outline>>();
  for (const entry of entriesOf(engine)) {
    const { whole } = entry.region;
    const named = Object.entries(keptState(engine, entry)).map(([name, { dtype, shape, per }]) => [
      name,
      { dtype, shape: per === 1 ? whole : shape },
    ]);
    expected.set(entry.name, Object.fromEntries(named));
  }
  for (const [name, { region }] of engine.module.namedParameters()) {
    const masterOnly = { master: { dtype: 'f32', shape: region.whole } } as const;
    for (const [state, wanted] of Object.entries(expected.get(name) ?? masterOnly)) {
      const key = stateKey(name, state);
      const info = checkpoint.tensors('optimizer').get(key);
      if (!info || isCompatible(info, wanted)) continue;
      throw otherModelError(`${checkpoint.path}: ${key}`, describe(wanted), describe(info));
    }
  }
}

/** Returns whether the shapes are equal, and the dtypes equal or both floating. */
function isCompatible(info: Outline, { dtype, shape }: Outline): boolean {
  const isSameKind = isFloating(dtype) ? isFloating(info.dtype) : info.dtype === dtype;
  return isSameKind && info.shape.join() === shape.join();
}

export function requireSameGroups({ parts }: EngineCore, { location, shared }: SavedState): void {
  const { groups } = parts.optimizer;
  if (shared.groups.length === groups.length) return;
  throw new DsError({
    code: 'DS_CHECKPOINT',
    op: `${location}: state.groups`,
    expected: `${groups.length} parameter groups`,
    got: `${shared.groups.length}`,
    hint: 'Use the groups of the save, or restart the optimizer with { loadOptimizerStates: false }.',
  });
}

export function requireSameOptimizer(
  engine: EngineCore,
  checkpoint: Checkpoint,
  strict: boolean,
): void {
  const saved = new Map<string, string[]>();
  for (const key of checkpoint.tensors('optimizer').keys()) {
    const dot = key.lastIndexOf('.');
    const states = saved.get(key.slice(0, dot)) ?? [];
    saved.set(key.slice(0, dot), states);
    states.push(key.slice(dot + 1));
  }
  for (const entry of entriesOf(engine)) {
    if (!strict && !isPresent(checkpoint, entry.name)) continue;
    const names = Object.keys(keptState(engine, entry));
    const ownStates = names.map((name) => (name === 'master' ? 'fp32' : name));
    const savedStates = (saved.get(entry.name) ?? []).filter((name) => !isRankError(name));
    if ([...ownStates].sort().join() === [...savedStates].sort().join()) continue;
    const from =
      savedStates.length > 0 ? 'It was saved with another optimizer' : 'It was not trained then';
    throw new DsError({
      code: 'DS_CHECKPOINT',
      op: `${checkpoint.path}: ${entry.name}`,
      expected: `${ownStates.join(', ')} (the state of ${engine.optimizer.name})`,
      got: savedStates.length > 0 ? savedStates.join(', ') : 'no optimizer state',
      hint: `${from}, or had another name. { loadOptimizerStates: false } restarts the optimizer.`,
    });
  }
}

function otherModelError(op: string, expected: string, got: string, hint = OTHER_MODEL): DsError {
  return new DsError({ code: 'DS_CHECKPOINT', op, expected, got, hint });
}
