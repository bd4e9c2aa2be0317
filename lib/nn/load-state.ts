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
  const own = module.stateDict();
  const tied = module.tiedNames();
  const given = new Map<string, Tensor>();
  for (const [name, value] of Object.entries(state)) given.set(tied.get(name) ?? name, value);
  if (strict) requireSameNames(own, given);
  const pairs = Object.entries(own).filter(([name]) => given.has(name));
  for (const [name, target] of pairs) {
    const { shape } = required(given.get(name));
    if (shape.join() === target.shape.join()) continue;
    throw mismatch(`${name} ${describe(target)}`, `[${shape.join(', ')}]`, OTHER_MODEL);
  }
  requireLoadable('loadStateDict', pairs, given);
  for (const [name, target] of pairs) assign(target, required(given.get(name)));
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
function requireSameNames(own: Record<string, Tensor>, given: ReadonlyMap<string, Tensor>): void {
  const missing = Object.keys(own).filter((name) => !given.has(name));
  const unexpected = [...given.keys()].filter((name) => !(name in own));
  const hint = hintForNames({ missing, unexpected }, '{ strict: false }');
  if (missing.length > 0) throw mismatch(`values for ${list(missing)}`, 'none', hint);
  if (unexpected.length > 0) throw mismatch('no other names', list(unexpected), hint);
}

function assign(target: Tensor, source: Tensor): void {
  target.requireWritable('loadStateDict');
  noGrad(() => scope(() => kernels.copy({ in: source.to(target.device), out: target })));
  markChanged(target);
}

function list(names: readonly string[]): string {
  const shown = names.slice(0, 5).join(', ');
  return names.length > 5 ? `${shown} and ${names.length - 5} more` : shown;
}

function mismatch(expected: string, got: string, hint: string): DsError {
  return new DsError({ code: 'DS_CHECKPOINT', op: 'loadStateDict', expected, got, hint });
}
