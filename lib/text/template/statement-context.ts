// Context of compiled statements: frames of variables, and assignments.

import { defined, required } from '../../runtime/required.js';
import { type CompileContext, type Compute, createAccess, type Frame } from './expressions.js';
import { runtimeError, valueError } from './fault.js';
import type { NamespaceTarget, Statement, Target } from './nodes.js';
import { type FunctionScope, Symbols } from './symbols.js';
import { MISSING, Namespace, toList, type Value } from './values.js';

/** How a statement ended: 0 normally, or by "break" or "continue". */
export type Signal = 0 | 1 | 2;
export const BREAK = 1;
export const CONTINUE = 2;

export type RunStatement = (frame: Frame) => Signal;

/** The context of compiled statements. */
export interface StatementContext extends CompileContext {
  /** Whether {% set %} sets variables of the context. */
  isTop: boolean;
  /** Whether the statements are inside a loop of the same function. */
  isInLoop: boolean;
  blocks: Map<string, RunStatement | null>;
  /** Compiles statements in the frame of the context or in a nested frame. */
  compileBody(statements: readonly Statement[], context: StatementContext): RunStatement;
}

/** Compiles code that initializes the variables of a frame. */
export function compileEntry(symbols: Symbols, from: FunctionScope): (frame: Frame) => void {
  const steps: ((frame: Frame) => void)[] = [];
  for (const [id, load] of symbols.loads) {
    const { write } = createAccess({ id, scope: symbols.scope }, from);
    if (load.action === 'resolve') {
      const { name } = load;
      steps.push((frame) => write(frame, frame.render.resolve(name)));
    } else if (load.action === 'alias') {
      const { read } = createAccess(load.of, from);
      steps.push((frame) => write(frame, read(frame)));
    } else if (load.action === 'undefined') steps.push((frame) => write(frame, MISSING));
  }
  return (frame) => {
    for (const step of steps) step(frame);
  };
}

/** Compiles code that ends the variables of a frame, which macros defined in it may still read. */
export function compileExit(symbols: Symbols, from: FunctionScope): (frame: Frame) => void {
  const accesses = [...symbols.loads.keys()].map((id) =>
    createAccess({ id, scope: symbols.scope }, from),
  );
  return (frame) => {
    for (const { write } of accesses) write(frame, MISSING);
  };
}

/** Returns the context of a nested frame, in the same function unless `scope` is another. */
export function nestContext(context: StatementContext, scope = context.scope): StatementContext {
  const symbols = new Symbols(context.symbols, scope);
  return { ...context, symbols, scope, isSoft: false, isTop: false };
}

export type Assigner = (frame: Frame, value: Value) => void;

export function compileTarget(target: Target, context: StatementContext): Assigner {
  if (target.type === 'Name') {
    const { write } = createAccess(required(context.symbols.find(target.name)), context.scope);
    return write;
  }
  if (target.type === 'NamespaceTarget') return compileNamespaceTarget(target, context);
  const assigns = target.items.map((item) => compileTarget(item as Target, context));
  return (frame, value) => {
    const parts = unpack(value, assigns.length);
    for (const [i, assign] of assigns.entries()) assign(frame, defined(parts[i]));
  };
}

function compileNamespaceTarget(target: NamespaceTarget, context: StatementContext): Assigner {
  const namespace = compileNamespace(target, context);
  const { attribute } = target;
  return (frame, value) => namespace(frame).attributes.set(attribute, value);
}

function compileNamespace(
  { name }: NamespaceTarget,
  context: StatementContext,
): (frame: Frame) => Namespace {
  const { read } = createAccess(required(context.symbols.find(name)), context.scope);
  return (frame) => {
    const namespace = read(frame);
    if (namespace instanceof Namespace) return namespace;
    throw runtimeError('cannot assign attribute on non-namespace object');
  };
}

function unpack(value: Value, count: number): readonly Value[] {
  const parts = toList(value);
  if (parts.length === count) return parts;
  if (parts.length > count) throw valueError(`too many values to unpack (expected ${count})`);
  throw valueError(`not enough values to unpack (expected ${count}, got ${parts.length})`);
}

/** Returns the namespaces that a target assigns to. */
function listNamespaces(target: Target): NamespaceTarget[] {
  if (target.type === 'NamespaceTarget') return [target];
  return target.type === 'Tuple'
    ? target.items.flatMap((item) => listNamespaces(item as Target))
    : [];
}

/** Returns the names that a target stores. */
function listNames(target: Target): string[] {
  if (target.type === 'Name') return [target.name];
  return target.type === 'Tuple' ? target.items.flatMap((item) => listNames(item as Target)) : [];
}

/** Compiles an assignment. At the top level, it also sets variables of the context. */
export function compileAssign(
  target: Target,
  value: Compute,
  context: StatementContext,
): RunStatement {
  const assign = compileTarget(target, context);
  const namespaces = listNamespaces(target).map((target) => compileNamespace(target, context));
  const exported = context.isTop
    ? listNames(target).map((name) => compileExport(name, context))
    : [];
  return (frame) => {
    // Python looks up the namespaces before it computes the value.
    for (const one of namespaces) one(frame);
    assign(frame, value(frame));
    for (const one of exported) one(frame);
    return 0;
  };
}

function compileExport(name: string, context: StatementContext): (frame: Frame) => void {
  const { read } = createAccess(required(context.symbols.find(name)), context.scope);
  return (frame) => {
    const value = read(frame);
    if (value !== MISSING) frame.render.set(name, value);
  };
}
