// The state of a standalone optimizer as an object, in the form of torch.optim.Optimizer.state_dict().
import { DsError } from '../errors.js';
import * as kernels from '../runtime/kernels.generated.js';
import { phrase } from '../runtime/phrase.js';
import { describe } from '../runtime/view.js';
import { noGrad, scope, Tensor } from '../tensor/index.js';
import type { Optimizer } from './optimizer.js';
import type { OwnState } from './own-state.js';
import { hyperparameters, type ParamGroup, requireHyperparameter } from './param-groups.js';

/** What stateDict() of an optimizer gives. */
export interface OptimizerState {
  /** By the parameter's number over all groups: tensors of its shape, and the number of its updates. */
  state: Record<string, { step: number } & Record<string, number | Tensor>>;
  /** Hyperparameters of each group, and the numbers of its parameters. */
  groups: ({ params: number[] } & Record<string, unknown>)[];
}

/** The state of an optimizer with `groups`: views with the parameters' shapes, in the current scope. */
export function stateOf(
  groups: readonly ParamGroup[],
  kept: ReadonlyMap<Tensor, OwnState>,
): OptimizerState {
  const out: OptimizerState = { state: {}, groups: [] };
  let index = 0;
  for (const group of groups) {
    const params: number[] = [];
    for (const parameter of group.params) {
      const own = kept.get(parameter);
      if (own) out.state[index] = { ...shaped(own), step: own.step };
      params.push(index++);
    }
    out.groups.push({ ...hyperparameters(group), params });
  }
  return out;
}

function shaped({ saved, place }: OwnState): Record<string, Tensor> {
  const named = Object.entries(saved);
  return Object.fromEntries(named.map(([name, tensor]) => [name, tensor.alias(place.shape)]));
}

/** A parameter whose state `given` is to become. */
interface Entry {
  parameter: Tensor;
  group: number;
  index: number;
  given: Record<string, unknown>;
}

/**
 * Brings `state` into an optimizer, whose state of a parameter `stateFor` makes. Throws DS_CHECKPOINT where they do not
 * fit, before anything has changed.
 */
export function readState(
  optimizer: Optimizer,
  state: OptimizerState,
  stateFor: (parameter: Tensor, group: number, index: number) => OwnState,
): void {
  const { name, groups } = optimizer;
  const op = `${name}.loadStateDict`;
  requireGroups(op, groups, state);
  const entries = entriesOf(groups, state);
  for (const entry of entries) {
    requireEntry(op, entry, Object.keys(optimizer.initialState(entry.group)));
  }
  noGrad(() => {
    for (const entry of entries) write(stateFor(entry.parameter, entry.group, entry.index), entry);
  });
  groups.forEach((group, i) => {
    const { params: _, ...settings } = state.groups[i] as OptimizerState['groups'][number];
    Object.assign(group, settings);
  });
}

function entriesOf(groups: readonly ParamGroup[], { state }: OptimizerState): Entry[] {
  const all = groups.flatMap(({ params }, group) =>
    params.map((parameter) => ({ parameter, group })),
  );
  return all.flatMap((one, index) => {
    const given = state[index];
    return given ? [{ ...one, index, given }] : [];
  });
}

function write(own: OwnState, { given }: Entry): void {
  own.step = given.step as number;
  for (const [name, target] of Object.entries(own.saved)) {
    const value = given[name] as Tensor | undefined;
    if (!value) continue; // A master that the state lacks follows the parameter at the next step.
    const out = target.alias(value.shape);
    scope(() => kernels.copy({ in: value.to(target.device), out }));
    out.dispose();
  }
}

function requireGroups(op: string, groups: readonly ParamGroup[], state: unknown): void {
  const { groups: given, state: values } = (state ?? {}) as Partial<OptimizerState>;
  if (!Array.isArray(given) || typeof values !== 'object' || values === null) {
    const expected = 'what stateDict() gives: { state, groups }';
    throw misfit(op, expected, phrase(state));
  }
  if (given.length !== groups.length) {
    throw misfit(op, `${groups.length} groups`, `${given.length}`);
  }
  groups.forEach((group, i) => {
    const { params, ...settings } = given[i] as OptimizerState['groups'][number];
    const place = `${op} group ${i}`;
    if (!Array.isArray(params) || params.length !== group.params.length) {
      throw misfit(place, `${group.params.length} parameters`, phrase(params?.length));
    }
    const own: Record<string, unknown> = hyperparameters(group);
    for (const [key, value] of Object.entries(settings)) {
      if (!(key in own)) throw misfit(place, Object.keys(own).join(', '), key);
      requireHyperparameter(`${place} ${key}`, value, own[key]);
    }
  });
}

function requireEntry(op: string, { parameter, index, given }: Entry, names: string[]): void {
  const place = `${op} ${index}`;
  const { step } = given;
  if (!Number.isSafeInteger(step) || (step as number) < 0) {
    throw misfit(`${place} step`, 'a number of updates', phrase(step));
  }
  const extra = Object.keys(given).find((key) => !['step', 'master', ...names].includes(key));
  if (extra) throw misfit(place, ['step', ...names].join(', '), extra);
  for (const name of names) requireLike(`${place} ${name}`, parameter, given[name]);
  if (given.master !== undefined) requireLike(`${place} master`, parameter, given.master);
}

function requireLike(place: string, { shape }: Tensor, value: unknown): void {
  const isLike = value instanceof Tensor && value.shape.join() === shape.join();
  if (isLike && value.dtype === 'f32') return;
  const got = value instanceof Tensor ? describe(value) : phrase(value);
  throw misfit(place, describe({ dtype: 'f32', shape }), got);
}

function misfit(op: string, expected: string, got: string): DsError {
  const hint = 'Use the state of an optimizer of the same class over the same parameters.';
  return new DsError({ code: 'DS_CHECKPOINT', op, expected, got, hint });
}
