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
  compileEntry,
  compileExit,
  compileTarget,
  nestContext,
  type RunStatement,
  type Signal,
  type StatementContext,
} from './statement-context.js';
import { FunctionScope, findUndeclared, someNode } from './symbols.js';
import { DONE, Generator, iterate, type Next, toBoolean, type Value } from './values.js';

/** Returns whether the statements may read "loop". */
const readsLoop = (body: readonly Node[]): boolean =>
  findUndeclared(body, ['loop']).size > 0 ||
  someNode(body, (node) => node.type === 'Block' && node.isScoped);

interface CompiledLoop {
  node: For;
  context: StatementContext;
  assign: Assigner;
  setLoop: VariableAccess['write'] | null;
  enter(frame: Frame): void;
  exit(frame: Frame): void;
  body: RunStatement;
  otherwise: RunStatement;
  /** Returns the items that pass the test of the loop. */
  testItems(frame: Frame, iterable: Value): Value;
}

export function compileFor(node: For, context: StatementContext): RunStatement {
  requireNoLoopTarget(node);
  const scope = node.isRecursive ? new FunctionScope(context.scope) : context.scope;
  const loop = compileLoop(node, context, scope);
  const iterated = compileExpression(node.iterated, context);
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

function compileLoop(node: For, context: StatementContext, scope: FunctionScope): CompiledLoop {
  const bodyContext = { ...nestContext(context, scope), isInLoop: true };
  const isExtended = node.isRecursive || readsLoop(node.body);
  if (isExtended) bodyContext.symbols.declareParameter('loop');
  bodyContext.symbols.visitTarget(node.target);
  bodyContext.symbols.visitAll(node.body);
  const outside = nestContext(context, scope);
  outside.isInLoop = context.isInLoop && !node.isRecursive;
  outside.symbols.visitAll(node.otherwise);
  const loopVariable = bodyContext.symbols.find('loop');
  const enterElse = compileEntry(outside.symbols, scope);
  const otherwise = context.compileBody(node.otherwise, outside);
  return {
    node,
    context: bodyContext,
    assign: compileTarget(node.target, bodyContext),
    setLoop: isExtended ? createAccess(required(loopVariable), scope).write : null,
    enter: compileEntry(bodyContext.symbols, scope),
    exit: compileExit(bodyContext.symbols, scope),
    body: context.compileBody(node.body, bodyContext),
    otherwise: (frame) => {
      enterElse(frame);
      return otherwise(frame);
    },
    testItems: compileTestedItems(node, context, scope),
  };
}

/** Compiles a generator of the items that pass the test of the loop. */
function compileTestedItems(
  node: For,
  context: StatementContext,
  scope: FunctionScope,
): (frame: Frame, iterable: Value) => Value {
  if (node.test === null) return (_, iterable) => iterable;
  const testContext = nestContext(context, new FunctionScope(scope));
  testContext.symbols.visitTarget(node.target);
  testContext.symbols.visitAll([node.test]);
  const enter = compileEntry(testContext.symbols, testContext.scope);
  const assign = compileTarget(node.target, testContext);
  const test = compileExpression(node.test, testContext);
  const { target } = node;
  const again = target.type === 'Tuple' ? compileExpression(loadTarget(target), testContext) : null;
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
