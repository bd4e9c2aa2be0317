// Whether a checkpoint is of an engine's model, optimizer and groups: names, shapes, and what is
// kept of each parameter.
import type { Checkpoint } from '../../checkpoint/index.js';
import { DsError } from '../../errors.js';
import { hintForNames, OTHER_MODEL } from '../../nn/name-mismatch.js';
import { isFloating } from '../../runtime/dtype.js';
import { describe } from '../../runtime/view.js';
import type { Tensor } from '../../tensor/index.js';
import type { EngineCore } from '../engine-parts.js';
import { keptState, slotsOf, stateKey } from './engine-shards.js';
import { isRankError } from './rank-errors.js';
import type { SavedState } from './saved-state.js';

/** Loads what there is. */
const LENIENT = '{ loadModuleStrict: false }';

type Outline = Pick<Tensor, 'dtype' | 'shape'>;

/** Whether the checkpoint has a weight or buffer of this name. */
export const isPresent = (checkpoint: Checkpoint, name: string): boolean =>
  checkpoint.tensors('model').has(name);

/** This rank's tensors as a whole. */
function* wholeTensors({ module }: EngineCore): Generator<[name: string, Outline]> {
  for (const [name, one] of module.namedParameters()) {
    yield [name, { dtype: one.dtype, shape: one.region.whole }];
  }
  yield* module.namedBuffers();
}

/** What the checkpoint has and this rank has not. */
export function unknownNames(engine: EngineCore, checkpoint: Checkpoint): string[] {
  const known = new Set(Array.from(wholeTensors(engine), ([name]) => name));
  return [...checkpoint.tensors('model').keys()].filter((name) => !known.has(name));
}

/**
 * Throws DS_CHECKPOINT where no rank has a tensor of the checkpoint. `unknown`: what each rank has
 * not.
 */
export function requireKnown(checkpoint: Checkpoint, unknown: readonly string[][]): void {
  const [first = [], ...others] = unknown;
  const left = others.reduce((names, other) => {
    const also = new Set(other);
    return names.filter((name) => also.has(name));
  }, first);
  if (left.length === 0) return;
  const got = `${left.length} more, "${left[0]}" among them`;
  const hint = hintForNames({ missing: [], unexpected: left }, LENIENT);
  throw otherModel(checkpoint.path, 'the tensors of this model alone', got, hint);
}

/**
 * What the checkpoint lacks because it was saved without what is not trained, and is not trained
 * here either.
 */
function leftOut(engine: EngineCore, { state }: Checkpoint): ReadonlySet<string> {
  if (state.excludesFrozen !== true) return new Set();
  const trained = new Set(slotsOf(engine).map(({ name }) => name));
  const names = Array.from(engine.module.namedParameters(), ([name]) => name);
  return new Set(names.filter((name) => !trained.has(name)));
}

/**
 * Without `strict`, what the checkpoint lacks is left alone; so is what it was saved without
 * (excludeFrozenParameters).
 */
export function requireSameModel(
  engine: EngineCore,
  checkpoint: Checkpoint,
  strict: boolean,
): void {
  const saved = checkpoint.tensors('model');
  const own = [...wholeTensors(engine)];
  const mayLack = leftOut(engine, checkpoint);
  const missing = own.filter(([name]) => !saved.has(name) && !mayLack.has(name));
  const [absent] = missing;
  if (strict && absent) {
    const got = `a checkpoint without ${missing.length} of this model's tensors`;
    const names = missing.map(([name]) => name);
    const unexpected = unknownNames(engine, checkpoint);
    const hint = hintForNames({ missing: names, unexpected }, LENIENT);
    throw otherModel(`${checkpoint.path}: ${absent[0]}`, describe(absent[1]), got, hint);
  }
  for (const [name, tensor] of own) {
    const info = saved.get(name);
    if (!info) continue;
    if (isAlike(info, tensor)) continue;
    throw otherModel(`${checkpoint.path}: ${name}`, describe(tensor), describe(info));
  }
}

/**
 * Master weights and states have the shapes that the optimizer declares, in floating point or in
 * its dtype.
 */
export function requireSameShapes(engine: EngineCore, checkpoint: Checkpoint): void {
  const kept = new Map<string, Record<string, Outline>>();
  for (const slot of slotsOf(engine)) {
    const { whole } = slot.region;
    const named = Object.entries(keptState(engine, slot)).map(([name, { dtype, shape, per }]) => [
      name,
      { dtype, shape: per === 1 ? whole : shape },
    ]);
    kept.set(slot.name, Object.fromEntries(named));
  }
  for (const [name, { region }] of engine.module.namedParameters()) {
    const alone = { master: { dtype: 'f32', shape: region.whole } } as const;
    for (const [state, wanted] of Object.entries(kept.get(name) ?? alone)) {
      const key = stateKey(name, state);
      const info = checkpoint.tensors('optimizer').get(key);
      if (!info || isAlike(info, wanted)) continue;
      throw otherModel(`${checkpoint.path}: ${key}`, describe(wanted), describe(info));
    }
  }
}

/** Of one shape, and of one dtype or both floating. */
function isAlike(info: Outline, { dtype, shape }: Outline): boolean {
  const isSameKind = isFloating(dtype) ? isFloating(info.dtype) : info.dtype === dtype;
  return isSameKind && info.shape.join() === shape.join();
}

export function requireSameGroups({ parts }: EngineCore, { place, shared }: SavedState): void {
  const { groups } = parts.optimizer;
  if (shared.groups.length === groups.length) return;
  throw new DsError({
    code: 'DS_CHECKPOINT',
    op: `${place}: state.groups`,
    expected: `${groups.length} parameter groups`,
    got: `${shared.groups.length}`,
    hint: 'Use the groups that it was saved with; { loadOptimizerStates: false } starts the optimizer afresh.',
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
  for (const slot of slotsOf(engine)) {
    if (!strict && !isPresent(checkpoint, slot.name)) continue;
    const names = Object.keys(keptState(engine, slot));
    const own = names.map((name) => (name === 'master' ? 'fp32' : name));
    const found = (saved.get(slot.name) ?? []).filter((name) => !isRankError(name));
    if ([...own].sort().join() === [...found].sort().join()) continue;
    const from =
      found.length > 0 ? 'It was saved with another optimizer' : 'It was not trained then';
    throw new DsError({
      code: 'DS_CHECKPOINT',
      op: `${checkpoint.path}: ${slot.name}`,
      expected: `${own.join(', ')}, which ${engine.optimizer.name} keeps`,
      got: found.length > 0 ? found.join(', ') : 'no optimizer state',
      hint: `${from}, or had another name: { loadOptimizerStates: false } starts the optimizer afresh.`,
    });
  }
}

function otherModel(op: string, expected: string, got: string, hint = OTHER_MODEL): DsError {
  return new DsError({ code: 'DS_CHECKPOINT', op, expected, got, hint });
}
