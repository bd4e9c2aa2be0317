// Parameter groups: which parameters an optimizer updates with which hyperparameters, as PyTorch has them.
import { DsError } from '../errors.js';
import type { Tensor } from '../tensor/index.js';

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
  const given = [...params] as (Tensor | GroupOptions<Group>)[];
  const lists = given.some(isGroup) ? given : [{ params: given as Tensor[] }];
  const seen = new Set<Tensor>();
  const groups = lists.map((item, index) => {
    if (!isGroup<Group>(item)) throw notAGroup(`${name} group ${index}`);
    const { params: own, ...rest } = item;
    const set = Object.entries(rest).filter(([, value]) => value !== undefined);
    const members = [...own];
    for (const parameter of members) {
      if (seen.has(parameter)) throw shared(`${name} group ${index}`, parameter);
      seen.add(parameter);
    }
    return { ...defaults, ...Object.fromEntries(set), params: members } as unknown as Group;
  });
  if (seen.size > 0) return groups;
  throw new DsError({
    code: 'DS_ARGUMENT',
    op: name,
    expected: 'at least one parameter',
    got: 'none',
    hint: 'Pass model.parameters(), or groups such as { params: [...], weightDecay: 0 }.',
  });
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
