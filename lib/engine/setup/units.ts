// A model's parameters to units: what moves as one, in which order, and what moves by itself.
import { DsError } from '../../errors.js';
import type { Module } from '../../nn/module.js';
import type { Parameter } from '../../nn/parameter.js';
import type { ParamGroup } from '../../optim/param-groups.js';
import type { DType } from '../../runtime/dtype.js';
import type { Tensor } from '../../tensor/index.js';
import { Unit, type UnitOptions } from '../../zero/unit.js';
import { FROZEN, type UnitParameter, WeightUnit } from '../../zero/weight-unit.js';
import type { ReleaseStack } from '../release-stack.js';
import { type Tie, tieOf } from './pipeline.js';

/** In forward order, each. */
export interface ModelUnits {
  trained: readonly Unit[];
  /** Where weights are sharded; elsewhere frozen parameters are in no unit. */
  frozen: readonly WeightUnit[];
}

export interface ModelUnitOptions extends UnitOptions {
  /**
   * Whether units come when they are used and go again: frozen parameters then form units as well.
   */
  shardsWeights: boolean;
  /**
   * Parameters of several stages of a pipeline: units of their own, whose shards are those of their
   * ranks.
   */
  ties?: readonly Tie[];
}

/**
 * Parameters of one module that move as one: they are all trained or all frozen, and have one
 * dtype.
 */
interface Together {
  name: string;
  module: Module;
  dtype: DType;
  parameters: UnitParameter[];
}

/**
 * Root parameters first (embeddings are read first), then the model's units in forward order, each
 * as one unit for every dtype among its trained parameters and one for every dtype among its frozen
 * ones. A parameter with several names belongs to the first unit that has it. One that is frozen,
 * or in no group, gets no gradient and keeps no state; `undo` makes trainable again what was.
 */
export function buildUnits(
  module: Module,
  groups: readonly ParamGroup[],
  { shardsWeights, ties = [], ...options }: ModelUnitOptions,
  undo: ReleaseStack,
): ModelUnits {
  const groupOf = indexGroups(module, groups);
  const left = module.parameters().filter((one) => !one.requiresGrad || !groupOf.has(one));
  freeze(left, undo);
  const moved = new Set(shardsWeights ? [] : left);
  for (const parameter of moved) {
    parameter.moveTo(options.device, parameter.fixedDtype ?? options.dtype);
  }
  const found = partsOf(module, ties).flatMap(([name, part, named]) => {
    const wanted = named.filter(([, parameter]) => !moved.has(parameter));
    return together([name, part, wanted], groupOf, options.dtype);
  });
  const isFrozen = ({ parameters: [first] }: Together): boolean => first?.group === FROZEN;
  const gradDtypeOf = (dtype: DType): DType =>
    dtype === options.dtype ? (options.gradDtype ?? dtype) : dtype;
  return {
    trained: found
      .filter((one) => !isFrozen(one))
      .map(({ name, module: part, parameters, dtype }) => {
        const tie = tieOf(ties, { parameters });
        const layout = tie ? { ...options.layout, shards: tie.group.size } : options.layout;
        const own = { ...options, dtype, gradDtype: gradDtypeOf(dtype), layout };
        return new Unit(name, part, parameters, own);
      }),
    frozen: found.filter(isFrozen).map(({ name, module: part, parameters, dtype }) => {
      return new WeightUnit(name, part, parameters, { ...options, dtype });
    }),
  };
}

type Part = [name: string, module: Module, parameters: [name: string, parameter: Parameter][]];

/**
 * What stages share, the root, then the model's units, each with the parameters that none before it
 * has, under the names that namedParameters() of the model gives them: weights and state of a
 * checkpoint are known by these.
 */
function partsOf(module: Module, ties: readonly Tie[]): Part[] {
  const inner = module.units();
  const owned = new Set(inner.flatMap((unit) => unit.module.parameters()));
  const taken = new Set(ties.flatMap(({ parameters }) => parameters));
  const all = [...module.namedParameters()];
  const nameOf = new Map(all.map(([name, parameter]) => [parameter, name]));
  const root = all.filter(([, parameter]) => !owned.has(parameter) && !taken.has(parameter));
  const parts: Part[] = ties.map(({ name, parameters }) => {
    const own = new Set(parameters);
    return [name, module, all.filter(([, parameter]) => own.has(parameter))];
  });
  parts.push(['root', module, root]);
  for (const { name, module: part } of inner) {
    const named = [...part.namedParameters()].filter(([, parameter]) => !taken.has(parameter));
    for (const [, parameter] of named) taken.add(parameter);
    parts.push([name, part, named.map(([, one]) => [nameOf.get(one) as string, one])]);
  }
  return parts;
}

/**
 * The parameters of a part by what they have in common, in the order in which each kind comes
 * first.
 */
function together(
  [name, module, named]: Part,
  groupOf: ReadonlyMap<Tensor, number>,
  engineDtype: DType,
): Together[] {
  const found = new Map<string, Together>();
  for (const [path, parameter] of named) {
    const dtype = parameter.fixedDtype ?? engineDtype;
    const group = parameter.requiresGrad ? (groupOf.get(parameter) as number) : FROZEN;
    const said = [group === FROZEN ? 'frozen' : '', dtype === engineDtype ? '' : dtype];
    const kind = said.filter(Boolean).join(' ');
    const unitName = kind ? `${name} (${kind})` : name;
    const one = found.get(kind) ?? { name: unitName, module, dtype, parameters: [] };
    found.set(kind, one);
    one.parameters.push({ name: path, parameter, group });
  }
  return [...found.values()];
}

/** These are not trained. */
function freeze(parameters: readonly Parameter[], undo: ReleaseStack): void {
  for (const parameter of parameters) {
    const { requiresGrad } = parameter;
    undo.defer(() => parameter.requireGrad(requiresGrad));
    parameter.requiresGrad = false;
  }
}

/** The group of each parameter. Throws DS_ARGUMENT for one that is not the model's. */
function indexGroups(module: Module, groups: readonly ParamGroup[]): Map<Tensor, number> {
  const own = new Set<Tensor>(module.parameters());
  const groupOf = new Map<Tensor, number>();
  groups.forEach(({ params }, index) => {
    for (const parameter of params) {
      if (!own.has(parameter)) throw foreign(index, parameter);
      groupOf.set(parameter, index);
    }
  });
  return groupOf;
}

function foreign(group: number, { shape }: Tensor): DsError {
  return new DsError({
    code: 'DS_ARGUMENT',
    op: `initialize, parameter group ${group}`,
    expected: 'parameters of the model',
    got: `a tensor [${shape.join(', ')}] that is none of them`,
  });
}
