// Parameter groups: parameters with their hyperparameters, as in PyTorch.
import type { DsError } from '../errors.js';
import { formatValue } from '../runtime/format-value.js';
import { argumentError, valueError } from '../runtime/input-errors.js';
import { camelCase, readOptions } from '../runtime/options.js';
import { requireFinite } from '../runtime/require-number.js';
import { requireType } from '../runtime/require-type.js';
import { closest } from '../runtime/suggestion.js';
import { Tensor } from '../tensor/index.js';

/** The fields that all groups have. Each optimizer adds its own hyperparameters. */
export interface ParamGroup {
  /** The parameters of the group. Every parameter is in exactly one group. */
  readonly params: readonly Tensor[];
  /** Learning rate, at least 0. */
  lr: number;
  /** Weight decay, at least 0. The optimizer applies it to weights or adds it to gradients. */
  weightDecay: number;
  /** Decay factors of the moments, for optimizers with moments. OneCycle schedules them. */
  betas?: readonly [number, number];
}

/**
 * A group as the caller writes it. The optimizer's options set missing hyperparameters. The group
 * keeps fields that are no hyperparameters of any optimizer, such as a name.
 */
export type GroupOptions<Group extends ParamGroup> = Partial<Omit<Group, 'params'>> & {
  params: Iterable<Tensor>;
  name?: string;
};

/** All parameters in one group, or a list of groups. */
export type ParamsOf<Group extends ParamGroup> = Iterable<Tensor> | Iterable<GroupOptions<Group>>;

/**
 * Returns the groups of the optimizer `name`. `defaults` set missing fields. Throws DS_ARGUMENT for
 * invalid hyperparameters, without parameters, or if a parameter is in two groups.
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
 * All hyperparameters of optimizers here and in PyTorch. If a group sets a hyperparameter that its
 * optimizer lacks, this is an error, not an extra field.
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
 * Returns whether a group may have this extra field: it is no hyperparameter, and does not look
 * like a misspelled one.
 */
function isExtra(key: string): boolean {
  const bare = key.replaceAll('_', '').toLowerCase();
  const names = HYPERPARAMETERS.map((name) => name.toLowerCase());
  return !names.includes(bare) && closest(bare, names) === '';
}

/**
 * Splits a group into hyperparameters and extra fields. Throws DS_ARGUMENT for a misspelled
 * hyperparameter, or one that is not in `known`.
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
 * Adds extra fields to `group`. They are not enumerable, so that they are not scheduled, saved or
 * compared.
 */
function withExtras<Group extends ParamGroup>(group: Group, extras: object): Group {
  for (const [key, value] of Object.entries(extras)) {
    Object.defineProperty(group, key, { value, writable: true, configurable: true });
  }
  return group;
}

const PARAMETERS = 'Pass model.parameters(), or groups such as { params: [...], weightDecay: 0 }.';

/** Returns the parameters as an array. Throws DS_ARGUMENT if they are not iterable. */
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
 * Values with the types of hyperparameters that are not numbers. The types do not follow from
 * `defaults`, because these contain the caller's unchecked options.
 */
const KINDS: Readonly<Record<string, unknown>> = {
  betas: [0, 0],
  nesterov: false,
  centered: false,
  useMuon: false,
};

/**
 * Checks a hyperparameter: its type must be that of `like`, and its value in the range that PyTorch
 * accepts. Throws DS_ARGUMENT.
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
 * Throws DS_ARGUMENT if other code set an invalid hyperparameter between steps. An update would
 * ignore it, or write NaN. Betas of a schedule may exceed 1, as in DeepSpeed.
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

/** Returns the fields of a group except its parameters. */
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

/**
 * Returns the error for a parameter that was computed from others. Only leaves of the graph receive
 * gradients.
 */
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
