// Compiles {% for %}.
import { required } from '../../runtime/required.js';
import { compileExpression, createAccess, Frame, type VariableAccess } from './expressions.js';
import { runDeeper, spend, syntaxError } from './fault.js';
import type { Expression, For, Node, Target } from './nodes.js';
import { str } from './print.js';
import { LoopContext } from './render.js';
import {
  type Assigner,
  BREAK,
  CONTINUE,
  type CompileSite,
  compileEntry,
  compileExit,
  compileTarget,
  nestSite,
  type RunStatement,
  type Signal,
} from './site.js';
import { FunctionScope, findUndeclared, someNode } from './symbols.js';
import { DONE, Generator, iterate, type Next, toBoolean, type Value } from './values.js';

/** Returns whether the statements may read "loop". */
const readsLoop = (body: readonly Node[]): boolean =>
  findUndeclared(body, ['loop']).size > 0 ||
  someNode(body, (node) => node.type === 'Block' && node.isScoped);

interface CompiledLoop {
  node: For;
  site: CompileSite;
  assign: Assigner;
  setLoop: VariableAccess['write'] | null;
  enter(frame: Frame): void;
  exit(frame: Frame): void;
  body: RunStatement;
  otherwise: RunStatement;
  /** Returns the items that pass the test of the loop. */
  testItems(frame: Frame, iterable: Value): Value;
}

export function compileFor(node: For, site: CompileSite): RunStatement {
  requireNoLoopTarget(node);
  const scope = node.isRecursive ? new FunctionScope(site.scope) : site.scope;
  const loop = compileLoop(node, site, scope);
  const iterated = compileExpression(node.iterated, site);
  if (!node.isRecursive) {
    return (frame) => runLoop(loop, frame, loop.testItems(frame, iterated(frame)), null);
  }
  return (frame) => {
    const recurse = (iterable: Value, depth: number): Value =>
      runDeeper(() => {
        const loopFrame = new Frame(frame, frame.render);
        const items = loop.testItems(loopFrame, iterable);
        const text = frame.render.capture(() => {
          runLoop(loop, loopFrame, items, (setting) => new LoopContext(setting, recurse, depth));
          return 0;
        });
        return required(text);
      });
    frame.render.write(str(recurse(iterated(frame), 0)));
    return 0;
  };
}

function requireNoLoopTarget(node: For): void {
  const isLoop = (node: Node): boolean =>
    node.type === 'Name' && node.context === 'store' && node.name === 'loop';
  if (someNode([node], isLoop)) {
    throw syntaxError("Can't assign to special loop variable in for-loop target", node.line);
  }
}

function compileLoop(node: For, site: CompileSite, scope: FunctionScope): CompiledLoop {
  const bodySite = { ...nestSite(site, scope), isInLoop: true };
  const isExtended = node.isRecursive || readsLoop(node.body);
  if (isExtended) bodySite.symbols.declareParameter('loop');
  bodySite.symbols.visitTarget(node.target);
  bodySite.symbols.visitAll(node.body);
  const outside = nestSite(site, scope);
  outside.isInLoop = site.isInLoop && !node.isRecursive;
  outside.symbols.visitAll(node.otherwise);
  const loopVariable = bodySite.symbols.find('loop');
  const enterElse = compileEntry(outside.symbols, scope);
  const otherwise = site.compileBody(node.otherwise, outside);
  return {
    node,
    site: bodySite,
    assign: compileTarget(node.target, bodySite),
    setLoop: isExtended ? createAccess(required(loopVariable), scope).write : null,
    enter: compileEntry(bodySite.symbols, scope),
    exit: compileExit(bodySite.symbols, scope),
    body: site.compileBody(node.body, bodySite),
    otherwise: (frame) => {
      enterElse(frame);
      return otherwise(frame);
    },
    testItems: compileTestedItems(node, site, scope),
  };
}

/** Compiles a generator of the items that pass the test of the loop. */
function compileTestedItems(
  node: For,
  site: CompileSite,
  scope: FunctionScope,
): (frame: Frame, iterable: Value) => Value {
  if (node.test === null) return (_, iterable) => iterable;
  const testSite = nestSite(site, new FunctionScope(scope));
  testSite.symbols.visitTarget(node.target);
  testSite.symbols.visitAll([node.test]);
  const enter = compileEntry(testSite.symbols, testSite.scope);
  const assign = compileTarget(node.target, testSite);
  const test = compileExpression(node.test, testSite);
  const { target } = node;
  const again = target.type === 'Tuple' ? compileExpression(loadTarget(target), testSite) : null;
  return (outer, iterable) => {
    const frame = new Frame(outer, outer.render);
    let next: Next | null = null;
    return new Generator(() => {
      if (next === null) {
        enter(frame);
        next = iterate(iterable);
      }
      for (let item = next(); item !== DONE; item = next()) {
        spend();
        assign(frame, item);
        if (toBoolean(test(frame))) return again === null ? item : again(frame);
      }
      return DONE;
    });
  };
}

/** Converts the targets of a loop to an expression that reads them. */
function loadTarget(target: Target): Expression {
  if (target.type === 'Name') return { ...target, context: 'load' };
  if (target.type !== 'Tuple') return target;
  return { type: 'Tuple', items: target.items.map((item) => loadTarget(item as Target)) };
}

function runLoop(
  loop: CompiledLoop,
  frame: Frame,
  iterable: Value,
  contextOf: ((iterable: Value) => LoopContext) | null,
): Signal {
  const { node, setLoop, assign, enter, body } = loop;
  const context = setLoop === null ? null : (contextOf?.(iterable) ?? new LoopContext(iterable));
  const next = context === null ? iterate(iterable) : () => context.next();
  let isEmpty = true;
  for (let item = next(); item !== DONE; item = next()) {
    spend();
    assign(frame, item);
    if (context !== null) setLoop?.(frame, context);
    enter(frame);
    const signal = body(frame);
    if (signal === BREAK) break;
    // As in jinja2, an iteration that ends by "continue" does not count for "else".
    if (signal !== CONTINUE) isEmpty = false;
    frame.render.line = node.line;
  }
  loop.exit(frame);
  return isEmpty && node.otherwise.length > 0 ? loop.otherwise(frame) : 0;
}
