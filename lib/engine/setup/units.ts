// Groups the parameters of a model into units. ZeRO moves the parameters of a unit together.

import type { Module } from '../../nn/module.js';
import type { Parameter } from '../../nn/parameter.js';
import type { ParamGroup } from '../../optim/param-groups.js';
import type { DType } from '../../runtime/dtype.js';
import { argumentError } from '../../runtime/input-errors.js';
import { required } from '../../runtime/required.js';
import type { Tensor } from '../../tensor/index.js';
import {
  FROZEN,
  Unit,
  UnitGradient,
  type UnitOptions,
  type UnitParameter,
  type WeightUnit,
} from '../../zero/unit.js';
import type { ReleaseStack } from '../release-stack.js';
import type { ZeroGroups } from '../zero-groups.js';

/** The units of a model, in forward order. */
export interface ModelUnits {
  trained: readonly Unit[];
  /** Frozen units exist only if weights are sharded. Otherwise frozen parameters are in no unit. */
  frozen: readonly WeightUnit[];
}

interface ModelUnitOptions extends UnitOptions {
  /** Dtype of gradient sums over micro-batches, for units with the dtype of the engine. */
  gradDtype: DType;
  /** Whether units are gathered at use and freed. If so, frozen parameters form units too. */
  shardsWeights: boolean;
  /** The ZeroGroup of each parameter. All parameters of a unit have the same one. */
  groups: ZeroGroups;
}

/** The parameters of one unit: all trained or all frozen, with one dtype. */
interface UnitPart {
  name: string;
  module: Module;
  dtype: DType;
  parameters: UnitParameter[];
}

/**
 * Builds the units of a model. First come root parameters, because embeddings are read first, then
 * the model's units in forward order. A unit is split by dtype, and into trained and frozen
 * parameters. Parameters in no optimizer group become frozen; `undo` restores their requiresGrad.
 */
export function buildUnits(
  module: Module,
  groups: readonly ParamGroup[],
  { shardsWeights, groups: zeroGroups, ...options }: ModelUnitOptions,
  undo: ReleaseStack,
): ModelUnits {
  const groupOf = indexGroups(module, groups);
  const stationary = module.parameters().filter((item) => !item.requiresGrad || !groupOf.has(item));
  freeze(stationary, undo);
  const excluded = new Set(shardsWeights ? [] : stationary);
  for (const parameter of excluded) {
    parameter.moveTo(options.device, parameter.fixedDtype ?? options.dtype);
  }
  const parts = unitModules(module, zeroGroups).flatMap(([name, block, named]) => {
    const included = named.filter(([, parameter]) => !excluded.has(parameter));
    return groupByKind([name, block, included], { groupOf, zeroGroups, dtype: options.dtype });
  });
  const makeUnit = <Gradient extends UnitGradient | null>(
    { name, module: block, parameters, dtype }: UnitPart,
    gradientOf: (unit: WeightUnit) => Gradient,
  ): Unit<Gradient> => {
    const shards = zeroGroups.ofUnit({ parameters }).group.size;
    const layout = { ...options.layout, shards };
    return new Unit(name, block, parameters, { ...options, dtype, layout }, gradientOf);
  };
  const gradDtypeOf = ({ dtype }: WeightUnit): DType =>
    dtype === options.dtype ? options.gradDtype : dtype;
  const isFrozen = ({ parameters: [first] }: UnitPart): boolean => first?.group === FROZEN;
  return {
    trained: parts
      .filter((item) => !isFrozen(item))
      .map((item) => makeUnit(item, (unit) => new UnitGradient(unit, gradDtypeOf(unit)))),
    frozen: parts.filter(isFrozen).map((item) => makeUnit(item, () => null)),
  };
}

type UnitModule = [
  name: string,
  module: Module,
  parameters: [name: string, parameter: Parameter][],
];

/**
 * Returns the modules that form units, with their parameters: first parameters that pipeline stages
 * share, then the root, then the units of the model. A parameter belongs to the first unit that has
 * it. Its name is the one of namedParameters(), which checkpoints use.
 */
function unitModules(module: Module, { own }: ZeroGroups): UnitModule[] {
  const inner = module.units();
  const owned = new Set(inner.flatMap((unit) => unit.module.parameters()));
  const ties = own.filter(({ group }) => group.spansStages);
  const taken = new Set<Tensor>(ties.flatMap(({ parameters }) => parameters));
  const all = [...module.namedParameters()];
  const nameOf = new Map(all.map(([name, parameter]) => [parameter, name]));
  const root = all.filter(([, parameter]) => !owned.has(parameter) && !taken.has(parameter));
  const units: UnitModule[] = ties.map(({ group: { name }, parameters }) => {
    const tied = new Set(parameters);
    return [name, module, all.filter(([, parameter]) => tied.has(parameter))];
  });
  units.push(['root', module, root]);
  for (const { name, module: block } of inner) {
    const named = [...block.namedParameters()].filter(([, parameter]) => !taken.has(parameter));
    for (const [, parameter] of named) taken.add(parameter);
    units.push([name, block, named.map(([, tensor]) => [required(nameOf.get(tensor)), tensor])]);
  }
  return units;
}

interface Kinds {
  /** By trained parameter: the index of its optimizer group. */
  groupOf: ReadonlyMap<Tensor, number>;
  zeroGroups: ZeroGroups;
  /** Dtype of the engine's weights. */
  dtype: DType;
}

/** Splits the parameters of a unit by kind. Kinds are in the order of their first parameter. */
function groupByKind(
  [name, module, named]: UnitModule,
  { groupOf, zeroGroups, dtype: engineDtype }: Kinds,
): UnitPart[] {
  const partsByKind = new Map<string, UnitPart>();
  for (const [path, parameter] of named) {
    const dtype = parameter.fixedDtype ?? engineDtype;
    const group = parameter.requiresGrad ? required(groupOf.get(parameter)) : FROZEN;
    const { name: ranks, spansStages } = zeroGroups.of(parameter);
    const labels = [
      spansStages ? '' : ranks,
      group === FROZEN ? 'frozen' : '',
      dtype === engineDtype ? '' : dtype,
    ];
    const kind = labels.filter(Boolean).join(' ');
    const unitName = kind ? `${name} (${kind})` : name;
    const part = partsByKind.get(kind) ?? { name: unitName, module, dtype, parameters: [] };
    partsByKind.set(kind, part);
    part.parameters.push({ name: path, parameter, group });
  }
  return [...partsByKind.values()];
}

function freeze(parameters: readonly Parameter[], undo: ReleaseStack): void {
  for (const parameter of parameters) {
    const { requiresGrad } = parameter;
    undo.defer(() => parameter.requireGrad(requiresGrad));
    parameter.requiresGrad = false;
  }
}

/**
 * Returns the index of the optimizer group of each parameter. Throws DS_ARGUMENT for parameters of
 * another model.
 */
function indexGroups(module: Module, groups: readonly ParamGroup[]): Map<Tensor, number> {
  const ownTensors = new Set<Tensor>(module.parameters());
  const groupOf = new Map<Tensor, number>();
  groups.forEach(({ params }, index) => {
    for (const parameter of params) {
      if (!ownTensors.has(parameter)) {
        const got = `another tensor, of shape [${parameter.shape.join(', ')}]`;
        throw argumentError(`initialize, parameter group ${index}`, 'parameters of the model', got);
      }
      groupOf.set(parameter, index);
    }
  });
  return groupOf;
}
