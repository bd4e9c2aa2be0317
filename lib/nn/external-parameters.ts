// Parameters that a module reads in its forward but that belong to another module.

import { argumentError } from '../runtime/input-errors.js';
import { trainerOf } from '../tensor/index.js';
import type { Module } from './module.js';
import type { Parameter } from './parameter.js';
import { requireModule } from './require-module.js';

const external = new WeakMap<Module, Set<Parameter>>();

/**
 * Declares that forward of `module` reads `parameter` of another module. ZeRO stage 3 gathers its
 * values before that forward. Call it before initialize(). Throws DS_ARGUMENT unless they are a
 * module, and a parameter without an engine. Source: deepspeed.zero.register_external_parameter.
 */
export function registerExternalParameter(module: Module, parameter: Parameter): void {
  requireModule('registerExternalParameter', module);
  requireUnowned(parameter, 'registerExternalParameter');
  const known = external.get(module) ?? new Set();
  external.set(module, known.add(parameter));
}

/**
 * Reverts registerExternalParameter(), also before initialize(). Throws DS_ARGUMENT unless they are
 * a module, and a parameter without an engine.
 */
export function unregisterExternalParameter(module: Module, parameter: Parameter): void {
  requireModule('unregisterExternalParameter', module);
  requireUnowned(parameter, 'unregisterExternalParameter');
  external.get(module)?.delete(parameter);
}

export function externalParameters(module: Module): readonly Parameter[] {
  return [...(external.get(module) ?? [])];
}

function requireUnowned(parameter: Parameter, op: string): void {
  if (!trainerOf(parameter)) return;
  throw argumentError(
    op,
    'a call before initialize(), in the constructor of the model for example',
    'a parameter that an engine owns',
  );
}
