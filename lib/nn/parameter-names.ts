// The names of a model's parameters, which are the same on all ranks of a pipeline.
import { Parameter } from './parameter.js';

/** A field of a model or below it: its path, and whether the model has it on this rank. */
export type Place<Field> = readonly [path: string, field: Field, isHere: boolean];

/**
 * All names of each parameter that is here, also those under which it is elsewhere, in the order of
 * the first ones.
 */
export function parameterNames(places: Iterable<Place<unknown>>): Map<Parameter, string[]> {
  const all = new Map<Parameter, string[]>();
  const here = new Set<Parameter>();
  for (const [name, field, isHere] of places) {
    if (!(field instanceof Parameter)) continue;
    all.set(field, [...(all.get(field) ?? []), name]);
    if (isHere) here.add(field);
  }
  return new Map([...all].filter(([parameter]) => here.has(parameter)));
}
