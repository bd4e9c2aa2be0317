// Selects the parameters that Muon orthogonalizes, by name and number of dims. They are the
// matrices between hidden states.

import { argumentError, valueError } from '../runtime/input-errors.js';
import { namesOf } from '../runtime/options.js';
import { Tensor } from '../tensor/index.js';
import {
  type GroupOptions,
  isGroup,
  type ParamGroup,
  type ParamsOf,
  readGroup,
} from './param-groups.js';

/** A parameter group of Muon: either matrices to orthogonalize, or parameters for AdamW. */
export interface MuonGroup extends ParamGroup {
  /** True: orthogonalize these matrices. False: update these parameters by AdamW. */
  useMuon: boolean;
  /** Momentum factor. Only for groups with useMuon. */
  momentum: number;
  /** Decay factors of the moments. Only for groups of AdamW. */
  betas: readonly [number, number];
  /** Added to the square root of the second moment. Only for groups of AdamW. */
  eps: number;
}

/** A group that states its rule by useMuon. */
export type MuonGroupOptions = GroupOptions<MuonGroup> & { useMuon: boolean };

/**
 * Matches names of embedding tables and heads. They are matrices, but not between hidden states.
 */
const NOT_HIDDEN = /embed|lm_head|(^|\.)w[tp]e\./;

/**
 * Returns whether DeepSpeed uses Muon for a parameter: two or more dims, and neither "embed" nor
 * "lm_head" in its name. Also excludes wte and wpe of GPT-2.
 */
function wantsMuon(name: string, { shape }: Tensor): boolean {
  return shape.length >= 2 && !NOT_HIDDEN.test(name);
}

/**
 * Returns a group for Muon and a group for AdamW from the named parameters of a model. Omits empty
 * groups. Throws DS_ARGUMENT for other values.
 */
export function makeMuonGroups(named: Iterable<readonly [string, Tensor]>): MuonGroupOptions[] {
  const all = pairsOf(named);
  return splitMuonGroups(
    all.map(([, parameter]) => parameter),
    all,
  );
}

function pairsOf(named: Iterable<readonly [string, Tensor]>): (readonly [string, Tensor])[] {
  const given: unknown = typeof named === 'string' ? null : named;
  const isList = typeof (given as Iterable<unknown> | null)?.[Symbol.iterator] === 'function';
  const pairs = isList ? [...named] : [];
  const other = pairs.find((pair) => !(Array.isArray(pair) && pair[1] instanceof Tensor));
  if (isList && other === undefined) return pairs;
  throw valueError(
    'makeMuonGroups',
    'names with their parameters',
    isList ? other : named,
    'Pass model.namedParameters().',
  );
}

/**
 * Splits every group without useMuon into a group for Muon and a group for AdamW. The learning rate
 * of the group applies to its matrices. The AdamW group uses the optimizer's adam_lr.
 */
export function splitMuonGroups(
  params: ParamsOf<MuonGroup>,
  named: Iterable<readonly [string, Tensor]>,
): MuonGroupOptions[] {
  const names = new Map<Tensor, string>();
  for (const [name, parameter] of named) names.set(parameter, name);
  const given = [...params] as (Tensor | GroupOptions<MuonGroup>)[];
  const groups = given.every((item) => isGroup<MuonGroup>(item))
    ? given
    : [{ params: given as Tensor[] }];
  return groups.flatMap((item, index): MuonGroupOptions[] => {
    const group = readMuonGroup(item, index);
    if (group.useMuon !== undefined) return [{ ...group, useMuon: group.useMuon }];
    const { lr, ...rest } = group;
    const members = [...group.params];
    return [true, false].flatMap((useMuon) => {
      const chosen = members.filter((p) => wantsMuon(names.get(p) ?? '', p) === useMuon);
      if (chosen.length === 0) return [];
      const rate = useMuon && lr !== undefined ? { lr } : {};
      return [{ ...rest, ...rate, params: chosen, useMuon }];
    });
  });
}

function readMuonGroup(group: GroupOptions<MuonGroup>, index: number): GroupOptions<MuonGroup> {
  const read = readGroup(`Muon group ${index}`, group, Object.keys(namesOf.MuonGroupOptions));
  return { ...read.extras, ...read.group };
}

/** Returns the fields of `group` that Muon uses. Throws DS_ARGUMENT for a group without useMuon. */
export function requireRule(group: MuonGroupOptions, index: number): MuonGroupOptions {
  if (isGroup<MuonGroup>(group)) {
    const read = readMuonGroup(group, index);
    if (typeof read.useMuon === 'boolean') return read as MuonGroupOptions;
  }
  throw argumentError(
    `Muon group ${index}`,
    'a group { params: [...], useMuon: true or false }',
    'a group without useMuon',
    'makeMuonGroups(model.namedParameters()) returns groups by name and number of dims.',
  );
}

/** Throws DS_ARGUMENT if `params` contains a vector. */
export function requireMatrices(params: readonly Tensor[], index: number): void {
  const vector = params.find(({ shape }) => shape.length < 2);
  if (!vector) return;
  throw argumentError(
    `Muon group ${index}`,
    'matrices where useMuon is true',
    `a parameter [${vector.shape.join(', ')}]`,
    'Put vectors into a group with useMuon: false.',
  );
}
