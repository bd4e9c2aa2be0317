// Replaces modules everywhere in a model.
import { isPlainObject } from '../runtime/is-object.js';
import { Module } from './module.js';

/**
 * Replaces each key of `instead` below `model` by its value: in fields, lists, plain objects and
 * Maps.
 */
export function replaceModules(model: Module, instead: ReadonlyMap<Module, Module>): void {
  for (const module of model.modules()) replaceIn(module, instead, new Set());
}

function replaceIn(holder: object, instead: ReadonlyMap<Module, Module>, seen: Set<object>): void {
  if (seen.has(holder)) return;
  seen.add(holder);
  const entries = holder instanceof Map ? [...holder] : Object.entries(holder);
  for (const [key, value] of entries) {
    const other = value instanceof Module ? instead.get(value) : undefined;
    if (other) setEntry(holder, key, other);
    else if (isCollection(value)) replaceIn(value, instead, seen);
  }
}

function setEntry(holder: object, key: unknown, value: Module): void {
  if (holder instanceof Map) holder.set(key, value);
  else (holder as Record<string, unknown>)[key as string] = value;
}

/** Returns whether entries of a collection can be replaced; a Set has no keys. */
function isCollection(value: unknown): value is object {
  return Array.isArray(value) || value instanceof Map || isPlainObject(value);
}
