// Loads values by name into a module, after a check that all of them fit.

import { DsError } from '../errors.js';
import { valueError } from '../runtime/input-errors.js';
import * as kernels from '../runtime/kernels.generated.js';
import { readOptions } from '../runtime/options.js';
import { requireType } from '../runtime/require-type.js';
import { required } from '../runtime/required.js';
import { describe } from '../runtime/view.js';
import { noGrad, scope, Tensor } from '../tensor/index.js';
import { markChanged } from '../tensor/tape.js';
import { requireLoadable } from './loadable.js';
import { hintForNames, OTHER_MODEL } from './name-mismatch.js';

/** The members of a module (module.ts) that loading uses. */
interface Stateful {
  stateDict(): Record<string, Tensor>;
  tiedNames(): Map<string, string>;
}

/** Copies `state` into `module` if all of it fits: see Module.loadStateDict. */
export function loadState(
  module: Stateful,
  state: Record<string, Tensor>,
  options: { strict?: boolean },
): void {
  const { strict = true } = readOptions('loadStateDict', options, { strict: true });
  requireType('loadStateDict strict', strict, 'boolean');
  requireTensors(state);
  const ownState = module.stateDict();
  const tied = module.tiedNames();
  const values = new Map<string, Tensor>();
  for (const [name, value] of Object.entries(state)) values.set(tied.get(name) ?? name, value);
  if (strict) requireSameNames(ownState, values);
  const pairs = Object.entries(ownState).filter(([name]) => values.has(name));
  for (const [name, target] of pairs) {
    const { shape } = required(values.get(name));
    if (shape.join() === target.shape.join()) continue;
    throw mismatchError(`${name} ${describe(target)}`, `[${shape.join(', ')}]`, OTHER_MODEL);
  }
  requireLoadable('loadStateDict', pairs, values);
  for (const [name, target] of pairs) copyValues(target, required(values.get(name)));
}

/** Throws DS_ARGUMENT unless `state` is an object of tensors. */
function requireTensors(state: unknown): void {
  const isPlain = typeof state === 'object' && state !== null && !(state instanceof Map);
  const [name, value] = isPlain
    ? (Object.entries(state).find(([, value]) => !(value instanceof Tensor)) ?? [])
    : ['', state];
  if (name === undefined) return;
  throw valueError(
    name ? `loadStateDict ${name}` : 'loadStateDict',
    name ? 'a tensor' : 'an object of tensors by name, as stateDict() returns',
    value,
    state instanceof Map ? 'Convert a Map with Object.fromEntries(state).' : '',
  );
}

/** Throws DS_CHECKPOINT if a tensor of the module has no value, or a value has no tensor. */
function requireSameNames(
  ownState: Record<string, Tensor>,
  values: ReadonlyMap<string, Tensor>,
): void {
  const missing = Object.keys(ownState).filter((name) => !values.has(name));
  const unexpected = [...values.keys()].filter((name) => !(name in ownState));
  const hint = hintForNames({ missing, unexpected }, '{ strict: false }');
  if (missing.length > 0) throw mismatchError(`values for ${formatNames(missing)}`, 'none', hint);
  if (unexpected.length > 0) throw mismatchError('no other names', formatNames(unexpected), hint);
}

function copyValues(target: Tensor, source: Tensor): void {
  target.requireWritable('loadStateDict');
  noGrad(() => scope(() => kernels.copy({ in: source.to(target.device), out: target })));
  markChanged(target);
}

function formatNames(names: readonly string[]): string {
  const shown = names.slice(0, 5).join(', ');
  return names.length > 5 ? `${shown} and ${names.length - 5} more` : shown;
}

function mismatchError(expected: string, got: string, hint: string): DsError {
  return new DsError({ code: 'DS_CHECKPOINT', op: 'loadStateDict', expected, got, hint });
}
