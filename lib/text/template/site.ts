// The context of compiled statements: frames of variables, and assignments to them.

import { defined, required } from '../../runtime/required.js';
import { accessOf, type CompileContext, type Compute, type Frame } from './expressions.js';
import { runtimeError, valueError } from './fault.js';
import type { NamespaceTarget, Statement, Target } from './nodes.js';
import { type FunctionScope, Symbols } from './symbols.js';
import { listOf, MISSING, Namespace, type Value } from './values.js';

/** How a statement ended: 0 at its end, or by a tag of its loop. */
export type Signal = 0 | 1 | 2;
export const BREAK = 1;
export const CONTINUE = 2;

export type Run = (frame: Frame) => Signal;

/** The context of compiled statements. */
export interface Site extends CompileContext {
  /** Whether {% set %} there sets variables of the context. */
  isTop: boolean;
  /** Whether a loop of the same function is around them. */
  isInLoop: boolean;
  blocks: Map<string, Run | null>;
  /** Compiles statements of the site's frame, or of one within it. */
  compileBody(statements: readonly Statement[], site: Site): Run;
}

/** Sets the variables of a frame to their initial values. */
export function compileEntry(symbols: Symbols, from: FunctionScope): (frame: Frame) => void {
  const steps: ((frame: Frame) => void)[] = [];
  for (const [id, load] of symbols.loads) {
    const { write } = accessOf({ id, scope: symbols.scope }, from);
    if (load.action === 'resolve') {
      const { name } = load;
      steps.push((frame) => write(frame, frame.render.resolve(name)));
    } else if (load.action === 'alias') {
      const { read } = accessOf(load.of, from);
      steps.push((frame) => write(frame, read(frame)));
    } else if (load.action === 'undefined') steps.push((frame) => write(frame, MISSING));
  }
  return (frame) => {
    for (const step of steps) step(frame);
  };
}

/** Ends the variables of a frame, which macros defined in it may still read. */
export function compileExit(symbols: Symbols, from: FunctionScope): (frame: Frame) => void {
  const ownAccess = [...symbols.loads.keys()].map((id) =>
    accessOf({ id, scope: symbols.scope }, from),
  );
  return (frame) => {
    for (const { write } of ownAccess) write(frame, MISSING);
  };
}

/** A frame within the present one, of the same function unless `scope` is another. */
export function inner(site: Site, scope = site.scope): Site {
  const symbols = new Symbols(site.symbols, scope);
  return { ...site, symbols, scope, isSoft: false, isTop: false };
}

export type Assigner = (frame: Frame, value: Value) => void;

export function compileTarget(target: Target, site: Site): Assigner {
  if (target.type === 'Name') {
    const { write } = accessOf(required(site.symbols.find(target.name)), site.scope);
    return write;
  }
  if (target.type === 'NamespaceTarget') return compileNamespaceTarget(target, site);
  const assigns = target.items.map((item) => compileTarget(item as Target, site));
  return (frame, value) => {
    const parts = unpack(value, assigns.length);
    for (const [i, assign] of assigns.entries()) assign(frame, defined(parts[i]));
  };
}

function compileNamespaceTarget(target: NamespaceTarget, site: Site): Assigner {
  const namespace = namespaceOf(target, site);
  const { attribute } = target;
  return (frame, value) => namespace(frame).attributes.set(attribute, value);
}

function namespaceOf({ name }: NamespaceTarget, site: Site): (frame: Frame) => Namespace {
  const { read } = accessOf(required(site.symbols.find(name)), site.scope);
  return (frame) => {
    const namespace = read(frame);
    if (namespace instanceof Namespace) return namespace;
    throw runtimeError('cannot assign attribute on non-namespace object');
  };
}

function unpack(value: Value, count: number): readonly Value[] {
  const parts = listOf(value);
  if (parts.length === count) return parts;
  if (parts.length > count) throw valueError(`too many values to unpack (expected ${count})`);
  throw valueError(`not enough values to unpack (expected ${count}, got ${parts.length})`);
}

/** The namespaces that a target assigns to. */
function namespacesIn(target: Target): NamespaceTarget[] {
  if (target.type === 'NamespaceTarget') return [target];
  return target.type === 'Tuple'
    ? target.items.flatMap((item) => namespacesIn(item as Target))
    : [];
}

/** The names that a target stores. */
function namesIn(target: Target): string[] {
  if (target.type === 'Name') return [target.name];
  return target.type === 'Tuple' ? target.items.flatMap((item) => namesIn(item as Target)) : [];
}

/** Assigns, and makes variables of the context where the template itself does. */
export function compileAssign(target: Target, value: Compute, site: Site): Run {
  const assign = compileTarget(target, site);
  const namespaces = namespacesIn(target).map((target) => namespaceOf(target, site));
  const exported = site.isTop ? namesIn(target).map((name) => exportOf(name, site)) : [];
  return (frame) => {
    // Python looks for the namespaces before it computes the value.
    for (const one of namespaces) one(frame);
    assign(frame, value(frame));
    for (const one of exported) one(frame);
    return 0;
  };
}

function exportOf(name: string, site: Site): (frame: Frame) => void {
  const { read } = accessOf(required(site.symbols.find(name)), site.scope);
  return (frame) => {
    const value = read(frame);
    if (value !== MISSING) frame.render.set(name, value);
  };
}
