// Reads and writes the state of a StandaloneOptimizer as an object, like
// torch.optim.Optimizer.state_dict().

import { DsError } from '../errors.js';
import { formatValue } from '../runtime/format-value.js';
import * as kernels from '../runtime/kernels.generated.js';
import { required } from '../runtime/required.js';
import { describe } from '../runtime/view.js';
import { noGrad, scope, Tensor } from '../tensor/index.js';
import { type DeclaredState, declaredState, savedState } from './declared-state.js';
import type { Optimizer } from './optimizer.js';
import type { OwnState } from './own-state.js';
import { hyperparameters, type ParamGroup, requireHyperparameter } from './param-groups.js';

/** The result of stateDict() of an optimizer. */
export interface OptimizerStateDict {
  /**
   * By number of the parameter over all groups: its declared tensors, and its number of updates.
   */
  state: Record<string, { step: number } & Record<string, number | Tensor>>;
  /** For each group: its hyperparameters, and the numbers of its parameters. */
  groups: ({ params: number[] } & Record<string, unknown>)[];
}

/**
 * Returns the state of an optimizer with `groups`. The tensors are views with the declared shapes;
 * the current scope owns them.
 */
export function stateOf(
  groups: readonly ParamGroup[],
  states: ReadonlyMap<Tensor, OwnState>,
): OptimizerStateDict {
  const out: OptimizerStateDict = { state: {}, groups: [] };
  let index = 0;
  for (const group of groups) {
    const params: number[] = [];
    for (const parameter of group.params) {
      const ownState = states.get(parameter);
      if (ownState) out.state[index] = { ...shapedState(ownState), step: ownState.step };
      params.push(index++);
    }
    out.groups.push({ ...hyperparameters(group), params });
  }
  return out;
}

function shapedState({ savedTensors }: OwnState): Record<string, Tensor> {
  const named = Object.entries(savedTensors);
  return Object.fromEntries(named.map(([name, { tensor, shape }]) => [name, tensor.alias(shape)]));
}

/** A parameter with the state to load. */
interface Entry {
  parameter: Tensor;
  group: number;
  index: number;
  values: Record<string, unknown>;
}

/**
 * Loads `state` into an optimizer. `stateFor` returns the state of a parameter, and creates it if
 * needed. Throws DS_CHECKPOINT if the state does not fit; then nothing has changed.
 */
export function readState(
  optimizer: Optimizer,
  state: OptimizerStateDict,
  stateFor: (parameter: Tensor, group: number, index: number) => OwnState,
): void {
  const { name, groups } = optimizer;
  const op = `${name}.loadStateDict`;
  requireGroups(op, groups, state);
  const entries = entriesOf(groups, state);
  for (const entry of entries) {
    const { group, parameter } = entry;
    requireEntry(op, entry, savedState(declaredState(optimizer, group, parameter.shape)));
  }
  noGrad(() => {
    for (const entry of entries) write(stateFor(entry.parameter, entry.group, entry.index), entry);
  });
  groups.forEach((group, i) => {
    const { params: _, ...settings } = required(state.groups[i]);
    Object.assign(group, settings);
  });
}

function entriesOf(groups: readonly ParamGroup[], { state }: OptimizerStateDict): Entry[] {
  const all = groups.flatMap(({ params }, group) =>
    params.map((parameter) => ({ parameter, group })),
  );
  return all.flatMap((item, index) => {
    const values = state[index];
    return values ? [{ ...item, index, values }] : [];
  });
}

function write(ownState: OwnState, { values }: Entry): void {
  ownState.step = values.step as number;
  for (const [name, { tensor: target }] of Object.entries(ownState.savedTensors)) {
    const value = values[name] as Tensor | undefined;
    if (!value) continue; // A missing master is taken from the parameter at the next step.
    const out = target.alias(value.shape);
    scope(() => kernels.copy({ in: value.to(target.device), out }));
    out.dispose();
  }
}

function requireGroups(op: string, groups: readonly ParamGroup[], state: unknown): void {
  const { groups: savedGroups, state: values } = (state ?? {}) as Partial<OptimizerStateDict>;
  if (!Array.isArray(savedGroups) || typeof values !== 'object' || values === null) {
    const expected = 'a result of stateDict(): { state, groups }';
    throw misfitError(op, expected, formatValue(state));
  }
  if (savedGroups.length !== groups.length) {
    throw misfitError(op, `${groups.length} groups`, `${savedGroups.length}`);
  }
  groups.forEach((group, i) => {
    const location = `${op} group ${i}`;
    const { params, ...settings } = (savedGroups[i] ?? {}) as Partial<
      OptimizerStateDict['groups'][0]
    >;
    if (!Array.isArray(params) || params.length !== group.params.length) {
      throw misfitError(
        location,
        `${group.params.length} parameters`,
        `${params?.length ?? 'none'}`,
      );
    }
    const own: Record<string, unknown> = hyperparameters(group);
    for (const [key, value] of Object.entries(settings)) {
      if (!(key in own)) throw misfitError(location, Object.keys(own).join(', '), key);
      requireHyperparameter(`${location} ${key}`, value, own[key]);
    }
  });
}

function requireEntry(
  op: string,
  { parameter, index, values }: Entry,
  declared: DeclaredState,
): void {
  const location = `${op} ${index}`;
  const { step } = values;
  if (typeof step !== 'number' || !Number.isSafeInteger(step) || step < 0) {
    throw misfitError(`${location} step`, 'a number of updates', formatValue(step));
  }
  const names = Object.keys(declared);
  const extra = Object.keys(values).find((key) => !['step', 'master', ...names].includes(key));
  if (extra) throw misfitError(location, ['step', ...names].join(', '), extra);
  for (const name of names) requireLike(`${location} ${name}`, declared[name]!, values[name]);
  if (values.master === undefined) return;
  requireLike(`${location} master`, { dtype: 'f32', shape: parameter.shape }, values.master);
}

function requireLike(
  location: string,
  expected: Pick<Tensor, 'dtype' | 'shape'>,
  value: unknown,
): void {
  const isLike = value instanceof Tensor && value.shape.join() === expected.shape.join();
  if (isLike && value.dtype === expected.dtype) return;
  const got = value instanceof Tensor ? describe(value) : formatValue(value);
  throw misfitError(location, describe(expected), got);
}

function misfitError(op: string, expected: string, got: string): DsError {
  const hint = 'Use the state of an optimizer of the same class with the same parameters.';
  return new DsError({ code: 'DS_CHECKPOINT', op, expected, got, hint });
}
