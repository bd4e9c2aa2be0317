// Compiles {% for %}.
import { required } from '../../runtime/required.js';
import { type Access, accessOf, compileExpression, Frame } from './expressions.js';
import { deeper, spend, syntaxError } from './fault.js';
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
  inner,
  type Run,
  type Signal,
  type Site,
} from './site.js';
import { FunctionScope, someNode, undeclaredIn } from './symbols.js';
import { DONE, Generator, isTrue, iterate, type Next, type Value } from './values.js';

/** Whether the statements read "loop", or may. */
const readsLoop = (body: readonly Node[]): boolean =>
  undeclaredIn(body, ['loop']).size > 0 ||
  someNode(body, (node) => node.type === 'Block' && node.isScoped);

interface Loop {
  node: For;
  site: Site;
  assign: Assigner;
  setLoop: Access['write'] | null;
  enter(frame: Frame): void;
  exit(frame: Frame): void;
  body: Run;
  otherwise: Run;
  /** Returns the items for which the test of the loop holds. */
  tested(frame: Frame, iterable: Value): Value;
}

export function compileFor(node: For, site: Site): Run {
  requireNoLoopTarget(node);
  const scope = node.isRecursive ? new FunctionScope(site.scope) : site.scope;
  const loop = compileLoop(node, site, scope);
  const iterated = compileExpression(node.iterated, site);
  if (!node.isRecursive) {
    return (frame) => runLoop(loop, frame, loop.tested(frame, iterated(frame)), null);
  }
  return (frame) => {
    const recurse = (iterable: Value, depth: number): Value =>
      deeper(() => {
        const ownFrame = new Frame(frame, frame.render);
        const items = loop.tested(ownFrame, iterable);
        const text = frame.render.capture(() => {
          runLoop(loop, ownFrame, items, (setting) => new LoopContext(setting, recurse, depth));
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

function compileLoop(node: For, site: Site, scope: FunctionScope): Loop {
  const own = { ...inner(site, scope), isInLoop: true };
  const isExtended = node.isRecursive || readsLoop(node.body);
  if (isExtended) own.symbols.declareParameter('loop');
  own.symbols.visitTarget(node.target);
  own.symbols.visitAll(node.body);
  const outside = inner(site, scope);
  outside.isInLoop = site.isInLoop && !node.isRecursive;
  outside.symbols.visitAll(node.otherwise);
  const loopVariable = own.symbols.find('loop');
  const enterElse = compileEntry(outside.symbols, scope);
  const otherwise = site.compileBody(node.otherwise, outside);
  return {
    node,
    site: own,
    assign: compileTarget(node.target, own),
    setLoop: isExtended ? accessOf(required(loopVariable), scope).write : null,
    enter: compileEntry(own.symbols, scope),
    exit: compileExit(own.symbols, scope),
    body: site.compileBody(node.body, own),
    otherwise: (frame) => {
      enterElse(frame);
      return otherwise(frame);
    },
    tested: compileTestedItems(node, site, scope),
  };
}

/** Compiles a generator of the items for which the test of the loop holds. */
function compileTestedItems(
  node: For,
  site: Site,
  scope: FunctionScope,
): (frame: Frame, iterable: Value) => Value {
  if (node.test === null) return (_, iterable) => iterable;
  const ownSite = inner(site, new FunctionScope(scope));
  ownSite.symbols.visitTarget(node.target);
  ownSite.symbols.visitAll([node.test]);
  const enter = compileEntry(ownSite.symbols, ownSite.scope);
  const assign = compileTarget(node.target, ownSite);
  const test = compileExpression(node.test, ownSite);
  const { target } = node;
  const again = target.type === 'Tuple' ? compileExpression(loadTarget(target), ownSite) : null;
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
        if (isTrue(test(frame))) return again === null ? item : again(frame);
      }
      return DONE;
    });
  };
}

/** The targets of a loop as an expression that reads them. */
function loadTarget(target: Target): Expression {
  if (target.type === 'Name') return { ...target, context: 'load' };
  if (target.type !== 'Tuple') return target;
  return { type: 'Tuple', items: target.items.map((item) => loadTarget(item as Target)) };
}

function runLoop(
  loop: Loop,
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
    // As in jinja2, an iteration that "continue" ends does not count for "else".
    if (signal !== CONTINUE) isEmpty = false;
    frame.render.line = node.line;
  }
  loop.exit(frame);
  return isEmpty && node.otherwise.length > 0 ? loop.otherwise(frame) : 0;
}
