// Parameter groups: parameters with their hyperparameters, as in PyTorch.
import type { DsError } from '../errors.js';
import { formatValue } from '../runtime/format-value.js';
import { argumentError, valueError } from '../runtime/input-errors.js';
import { camelCase, readOptions } from '../runtime/options.js';
import { requireFinite } from '../runtime/require-number.js';
import { requireType } from '../runtime/require-type.js';
import { closest } from '../runtime/suggestion.js';
import { Tensor } from '../tensor/index.js';

/** The common fields of groups. Each optimizer adds its own hyperparameters. */
export interface ParamGroup {
  /** The parameters of the group. Every parameter is in exactly one group. */
  readonly params: readonly Tensor[];
  /** Learning rate, at least 0. */
  lr: number;
  /** At least 0. The rule decides if it decays weights or is added to gradients. */
  weightDecay: number;
  /**
   * Decays of the moments, if the rule has them. OneCycle schedules them with the learning rate.
   */
  betas?: readonly [number, number];
}

/**
 * A group as the caller writes it. Missing hyperparameters come from the optimizer's options.
 * Fields that are not hyperparameters of any optimizer, such as a name, stay on the group
 * unchanged.
 */
export type GroupOptions<Group extends ParamGroup> = Partial<Omit<Group, 'params'>> & {
  params: Iterable<Tensor>;
  name?: string;
};

/** All parameters in one group, or a list of groups. */
export type ParamsOf<Group extends ParamGroup> = Iterable<Tensor> | Iterable<GroupOptions<Group>>;

/**
 * Returns the groups of optimizer `name`; `defaults` fill missing fields. Throws DS_ARGUMENT
 * without parameters, or if a parameter is in two groups.
 */
export function makeGroups<Group extends ParamGroup>(
  name: string,
  params: ParamsOf<Group>,
  defaults: Omit<Group, 'params'>,
): Group[] {
  const given = listOf(name, params) as (Tensor | GroupOptions<Group>)[];
  const lists = given.some(isGroup) ? given : [{ params: given as Tensor[] }];
  const seen = new Set<Tensor>();
  const known = ['params', ...Object.keys(defaults)];
  const groups = lists.map((item, index) => {
    const op = given === lists ? `${name} group ${index}` : name;
    if (!isGroup<Group>(item)) throw notGroupError(op);
    const { group: read, extras } = readGroup(op, item, known);
    const { params: own, ...rest } = read;
    const set = Object.entries(rest).filter(([, value]) => value !== undefined);
    const members = listOf(op, own) as Tensor[];
    for (const parameter of members) {
      requireParameter(op, parameter);
      if (seen.has(parameter)) throw sharedError(op, parameter);
      seen.add(parameter);
    }
    const group = { ...defaults, ...Object.fromEntries(set), params: members };
    for (const key of Object.keys(defaults)) {
      requireHyperparameter(`${op} ${key}`, group[key as keyof typeof group], KINDS[key] ?? 0);
    }
    return withExtras(group as unknown as Group, extras);
  });
  if (seen.size > 0) return groups;
  throw argumentError(name, 'at least one parameter', 'none', PARAMETERS);
}

/**
 * Hyperparameters of optimizers here and in PyTorch. An optimizer without one of them must not
 * ignore it.
 */
const HYPERPARAMETERS: readonly string[] = [
  'params',
  'lr',
  'weightDecay',
  'betas',
  'eps',
  'momentum',
  'dampening',
  'nesterov',
  'useMuon',
  'lrDecay',
  'initialAccumulatorValue',
  'minCoeff',
  'maxCoeff',
  'biasCorrection',
  'amsgrad',
  'maximize',
  'alpha',
  'centered',
  'adamWMode',
  'initialLr',
  'learningRate',
  'decay',
  'wd',
  'l2',
  'beta1',
  'beta2',
  'epsilon',
  'clipThreshold',
  'decayRate',
  'scaleParameter',
  'relativeStep',
  'warmupInit',
  'min8bitSize',
];

/**
 * Returns whether the caller may use this field of a group: it is not a hyperparameter, and not a
 * misspelled one.
 */
function isExtra(key: string): boolean {
  const bare = key.replaceAll('_', '').toLowerCase();
  const names = HYPERPARAMETERS.map((name) => name.toLowerCase());
  return !names.includes(bare) && closest(bare, names) === '';
}

/**
 * Splits a group into its hyperparameters and other fields. Throws DS_ARGUMENT for a hyperparameter
 * outside of `known`, or a misspelled one.
 */
export function readGroup<Group extends ParamGroup>(
  op: string,
  item: GroupOptions<Group>,
  known: readonly string[],
): { group: GroupOptions<Group>; extras: object } {
  const entries = Object.entries(item);
  const isOwn = ([key]: [string, unknown]): boolean => !known.includes(key) && isExtra(key);
  const extras = Object.fromEntries(entries.filter(isOwn));
  const rest = Object.fromEntries(entries.filter((entry) => !isOwn(entry)));
  const names = Object.fromEntries(known.map((name) => [name, true as const]));
  return { group: readOptions(op, rest as GroupOptions<Group>, names), extras };
}

/**
 * Returns `group` with fields that are readable, but not enumerable, so they are not scheduled,
 * saved or compared.
 */
function withExtras<Group extends ParamGroup>(group: Group, extras: object): Group {
  for (const [key, value] of Object.entries(extras)) {
    Object.defineProperty(group, key, { value, writable: true, configurable: true });
  }
  return group;
}

const PARAMETERS = 'Pass model.parameters(), or groups such as { params: [...], weightDecay: 0 }.';

/** Returns the caller's parameters as an array. */
export function listOf(op: string, params: unknown): unknown[] {
  const list = params as Iterable<unknown> | null | undefined;
  if (typeof list !== 'string' && typeof list?.[Symbol.iterator] === 'function') return [...list];
  const got = formatValue(params);
  throw argumentError(op, 'a list of parameters', got, PARAMETERS);
}

function requireParameter(op: string, value: unknown): void {
  if (value instanceof Tensor && value.gradFn === null) return;
  if (value instanceof Tensor) throw computedError(op, value);
  const hint = Array.isArray(value) ? 'Pass model.parameters(), without names.' : PARAMETERS;
  throw valueError(op, 'parameters', value, hint);
}

/**
 * Examples of the types of hyperparameters that are not numbers. The defaults do not define the
 * types, because the caller's options are in them.
 */
const KINDS: Readonly<Record<string, unknown>> = {
  betas: [0, 0],
  nesterov: false,
  centered: false,
  useMuon: false,
};

/**
 * Checks a hyperparameter: the type of `like`, and the range of PyTorch's optimizers. Throws
 * DS_ARGUMENT for another type or a value out of range.
 */
export function requireHyperparameter(location: string, value: unknown, like: unknown): void {
  if (Array.isArray(like)) {
    for (const beta of requirePair(location, value)) requireFinite(location, beta, 0, 1);
  } else if (typeof like === 'boolean') requireType(location, value, 'boolean');
  else requireFinite(location, value, 0);
}

function requirePair(location: string, value: unknown): readonly unknown[] {
  if (Array.isArray(value) && value.length === 2) return value;
  throw valueError(location, 'a list of two numbers', value);
}

/**
 * Throws DS_ARGUMENT if a caller or a schedule set an invalid hyperparameter between steps. An
 * update would make weights NaN, or ignore it. Momenta of schedules may exceed 1, as in DeepSpeed.
 */
export function requireHyperparameters(name: string, groups: readonly ParamGroup[]): void {
  groups.forEach((group, i) => {
    const own: Record<string, unknown> = hyperparameters(group);
    for (const [key, value] of Object.entries(own)) {
      const location = `${name} group ${i}`;
      const named = camelCase(key);
      if (named !== key && named in own) throw argumentError(location, `"${named}"`, `"${key}"`);
      requireChanged(`${location} ${key}`, key, value);
    }
  });
}

function requireChanged(location: string, key: string, value: unknown): void {
  if (key === 'lr' || key === 'weightDecay') requireFinite(location, value, 0);
  else if (key === 'betas')
    for (const beta of requirePair(location, value)) requireFinite(location, beta);
  else if (typeof value === 'number') requireFinite(location, value);
}

/** Returns a group without its parameters. */
export function hyperparameters<Group extends ParamGroup>(group: Group): Omit<Group, 'params'> {
  const { params: _, ...rest } = group;
  return rest;
}

export function isGroup<Group extends ParamGroup>(item: unknown): item is GroupOptions<Group> {
  return typeof item === 'object' && item !== null && 'params' in item;
}

function notGroupError(op: string): DsError {
  return argumentError(op, 'a group { params: [...], ... }', 'a parameter in a list of groups');
}

/** Returns the error of a parameter that is not a leaf. Only leaves receive gradients. */
function computedError(op: string, { shape }: Tensor): DsError {
  return argumentError(
    op,
    'leaves of the graph',
    `a tensor [${shape.join(', ')}] that was computed from others`,
    `${PARAMETERS} For a plain tensor: detach().requireGrad().`,
  );
}

function sharedError(op: string, { shape }: Tensor): DsError {
  return argumentError(
    op,
    'every parameter in one group',
    `a parameter [${shape.join(', ')}] that occurs twice`,
  );
}
