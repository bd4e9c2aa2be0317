// A model's parameters to units: what moves as one, in which order, and what is left out.
import { DsError } from '../../errors.js';
import type { Module } from '../../nn/module.js';
import type { Parameter } from '../../nn/parameter.js';
import type { ParamGroup } from '../../optim/param-groups.js';
import type { Tensor } from '../../tensor/index.js';
import { Unit, type UnitOptions, type UnitParameter } from '../../zero/unit.js';
import type { ReleaseStack } from '../release-stack.js';

/**
 * Root parameters first (embeddings are read first), then the model's units in forward order. A parameter with several
 * names belongs to the first unit that has it; one that is frozen, or in no group, belongs to none: it gets no gradient
 * and keeps no state. `undo` makes trainable again what was.
 */
export function buildUnits(
  module: Module,
  groups: readonly ParamGroup[],
  options: UnitOptions,
  undo: ReleaseStack,
): Unit[] {
  const groupOf = indexGroups(module, groups);
  leaveOut(
    module.parameters().filter((parameter) => !parameter.requiresGrad || !groupOf.has(parameter)),
    options,
    undo,
  );
  const inner = module.units();
  const owned = new Set(inner.flatMap((unit) => unit.module.parameters()));
  const taken = new Set<Parameter>();
  const take = (named: Iterable<[string, Parameter]>, prefix: string): UnitParameter[] => {
    const found: UnitParameter[] = [];
    for (const [name, parameter] of named) {
      if (!parameter.requiresGrad || taken.has(parameter)) continue;
      taken.add(parameter);
      found.push({ name: prefix + name, parameter, group: groupOf.get(parameter) as number });
    }
    return found;
  };
  const root = [...module.namedParameters()].filter(([, parameter]) => !owned.has(parameter));
  const rest = take(root, '');
  const units = rest.length > 0 ? [new Unit('root', module, rest, options)] : [];
  for (const { name, module: part } of inner) {
    const parameters = take(part.namedParameters(), `${name}.`);
    if (parameters.length > 0) units.push(new Unit(name, part, parameters, options));
  }
  return units;
}

/** These are not trained: they move to the device by themselves. */
function leaveOut(
  parameters: readonly Parameter[],
  { device, dtype }: UnitOptions,
  undo: ReleaseStack,
): void {
  for (const parameter of parameters) {
    const { requiresGrad } = parameter;
    undo.defer(() => parameter.requireGrad(requiresGrad));
    parameter.requiresGrad = false;
    parameter.moveTo(device, dtype);
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
