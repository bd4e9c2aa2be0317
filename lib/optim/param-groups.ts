// Parameter groups: which parameters an optimizer updates with which hyperparameters, as PyTorch has them.
import { DsError } from '../errors.js';
import { readOptions } from '../runtime/options.js';
import { phrase } from '../runtime/phrase.js';
import { requireFinite } from '../runtime/require-number.js';
import { Tensor } from '../tensor/index.js';

/** What every group has; each optimizer adds its own hyperparameters. */
export interface ParamGroup {
  readonly params: readonly Tensor[];
  lr: number;
  weightDecay: number;
  /** Decays of the moments, in groups whose rule has them: what OneCycle schedules beside the rate. */
  betas?: readonly [number, number];
}

/** A group as a caller writes it: what is left out comes from the optimizer's options. */
export type GroupOptions<Group extends ParamGroup> = Partial<Omit<Group, 'params'>> & {
  params: Iterable<Tensor>;
};

/** All parameters in one group, or a list of groups. */
export type ParamsOf<Group extends ParamGroup> = Iterable<Tensor> | Iterable<GroupOptions<Group>>;

/**
 * The groups of optimizer `name`, with `defaults` where a group says nothing. Throws DS_ARGUMENT when there is
 * no parameter, or one is in two groups.
 */
export function makeGroups<Group extends ParamGroup>(
  name: string,
  params: ParamsOf<Group>,
  defaults: Omit<Group, 'params'>,
): Group[] {
  const given = listOf(name, params) as (Tensor | GroupOptions<Group>)[];
  const lists = given.some(isGroup) ? given : [{ params: given as Tensor[] }];
  const seen = new Set<Tensor>();
  const known = Object.fromEntries(
    ['params', ...Object.keys(defaults)].map((key) => [key, true as const]),
  );
  const groups = lists.map((item, index) => {
    const op = given === lists ? `${name} group ${index}` : name;
    if (!isGroup<Group>(item)) throw notAGroup(op);
    const { params: own, ...rest } = readOptions<GroupOptions<Group>>(op, item, known);
    const set = Object.entries(rest).filter(([, value]) => value !== undefined);
    const members = listOf(op, own) as Tensor[];
    for (const parameter of members) {
      requireParameter(op, parameter);
      if (seen.has(parameter)) throw shared(op, parameter);
      seen.add(parameter);
    }
    const group = { ...defaults, ...Object.fromEntries(set), params: members };
    for (const [key, value] of Object.entries(group)) requireHyperparameter(op, key, value);
    return group as unknown as Group;
  });
  if (seen.size > 0) return groups;
  throw new DsError({
    code: 'DS_ARGUMENT',
    op: name,
    expected: 'at least one parameter',
    got: 'none',
    hint: PARAMETERS,
  });
}

const PARAMETERS = 'Pass model.parameters(), or groups such as { params: [...], weightDecay: 0 }.';

/** What a caller gives for parameters, as an array. */
function listOf(op: string, params: unknown): unknown[] {
  const list = params as Iterable<unknown> | null | undefined;
  if (typeof list !== 'string' && typeof list?.[Symbol.iterator] === 'function') return [...list];
  const got = phrase(params);
  throw new DsError({
    code: 'DS_ARGUMENT',
    op,
    expected: 'a list of parameters',
    got,
    hint: PARAMETERS,
  });
}

function requireParameter(op: string, value: unknown): void {
  if (value instanceof Tensor) return;
  const hint = Array.isArray(value) ? 'Pass model.parameters(): they have no names.' : PARAMETERS;
  throw new DsError({ code: 'DS_ARGUMENT', op, expected: 'parameters', got: phrase(value), hint });
}

/** Ranges as PyTorch's optimizers check them. Throws DS_ARGUMENT. */
function requireHyperparameter(op: string, key: string, value: unknown): void {
  const place = `${op} ${key}`;
  if (key === 'betas') {
    const [first, second] = Array.isArray(value) && value.length === 2 ? value : [value, value];
    requireFinite(place, first, 0, 1);
    requireFinite(place, second, 0, 1);
  } else if (key === 'nesterov' || key === 'useMuon') {
    if (typeof value === 'boolean') return;
    const got = phrase(value);
    throw new DsError({ code: 'DS_ARGUMENT', op: place, expected: 'true or false', got });
  } else if (key !== 'params') requireFinite(place, value, 0);
}

/** The hyperparameters of a group alone. */
export function hyperparameters<Group extends ParamGroup>(group: Group): Omit<Group, 'params'> {
  const { params: _, ...rest } = group;
  return rest;
}

export function isGroup<Group extends ParamGroup>(item: unknown): item is GroupOptions<Group> {
  return typeof item === 'object' && item !== null && 'params' in item;
}

function notAGroup(op: string): DsError {
  return new DsError({
    code: 'DS_ARGUMENT',
    op,
    expected: 'a group { params: [...], ... }, as the others are',
    got: 'a parameter between groups',
  });
}

function shared(op: string, { shape }: Tensor): DsError {
  return new DsError({
    code: 'DS_ARGUMENT',
    op,
    expected: 'every parameter in one group',
    got: `a parameter [${shape.join(', ')}] that is in two, or twice in one`,
  });
}
