// Layer reduction: initializes a model of few layers from layers of a deeper model.
import { DsError } from '../errors.js';
import type { Module } from '../nn/module.js';
import type { CompressionSection } from './technique.js';

type Section = CompressionSection['layer_reduction'];

const SECTION = 'compression_training.layer_reduction';

/**
 * Copies the values of layer teacher_layer[i] of `teacher` to layer i of `model`. Modules of
 * other_module_name are copied to the modules of the same name. Throws DS_CONFIG for a name that
 * one of the models lacks, DS_CHECKPOINT for different shapes. Source: DeepSpeed's
 * student_initialization.
 */
export function reduceLayers(model: Module, teacher: Module, section: Section): void {
  const { module_name_prefix: prefix, teacher_layer: layers, other_module_name: others } = section;
  const copies = [
    ...layers.map((from, to) => [`${prefix}.${to}`, `${prefix}.${from}`] as const),
    ...others.map((name) => [name, name] as const),
  ];
  const pairs = copies.map(
    ([to, from]) => [findModule(model, to, 'model'), findModule(teacher, from, 'teacher')] as const,
  );
  for (const [to, from] of pairs) to.loadStateDict(from.stateDict());
}

function findModule(model: Module, path: string, role: string): Module {
  const module = new Map(model.namedModules()).get(path);
  if (module) return module;
  const names = [...model.namedChildren()].map(([name]) => name).join(', ');
  throw new DsError({
    code: 'DS_CONFIG',
    op: SECTION,
    expected: `a module "${path}" in the ${role}`,
    got: 'no module of this name',
    hint: `The names of the ${role} begin with ${names}.`,
  });
}
