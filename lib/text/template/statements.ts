// Compiles statements to closures that write text to the render.
import { required } from '../../runtime/required.js';
import { compileExpression, compileFilter, Frame } from './expressions.js';
import { runtimeError, spend, syntaxError, typeError } from './fault.js';
import { compileFor } from './loops.js';
import { compileCallBlock, compileMacro } from './macros.js';
import {
  type AssignBlock,
  type Block,
  type FilterBlock,
  type If,
  isConstant,
  type Output,
  type Statement,
  type With,
} from './nodes.js';
import { str } from './print.js';
import type { Render } from './render.js';
import {
  BREAK,
  CONTINUE,
  compileAssign,
  compileEntry,
  compileExit,
  compileTarget,
  nestContext,
  type RunStatement,
  type Signal,
  type StatementContext,
} from './statement-context.js';
import { FunctionScope, Symbols } from './symbols.js';
import { Markup, toBoolean, typeName } from './values.js';

/** A compiled template. */
export type Program = (render: Render) => void;

/** Compiles a template. Throws TemplateSyntaxError if jinja2 would not compile it. */
export function compileTemplate(statements: readonly Statement[]): Program {
  const blocks = new Map<string, RunStatement | null>();
  const run = compileRoot(statements, blocks, true);
  return (render) => {
    run(new Frame(null, render));
  };
}

/** Compiles a template or a block, which has no outer function. */
function compileRoot(
  statements: readonly Statement[],
  blocks: Map<string, RunStatement | null>,
  isTop: boolean,
): RunStatement {
  const scope = new FunctionScope(null);
  const symbols = new Symbols(null, scope);
  symbols.visitAll(statements);
  const context = { symbols, scope, isSoft: false, isTop, isInLoop: false, blocks, compileBody };
  const enter = compileEntry(symbols, scope);
  const body = compileBody(statements, context);
  return (frame) => {
    enter(frame);
    return body(frame);
  };
}

function compileBody(statements: readonly Statement[], context: StatementContext): RunStatement {
  const runs = statements.map((statement) => compileStatement(statement, context));
  const [first] = runs;
  if (runs.length === 1 && first) return first;
  return (frame) => {
    for (const run of runs) {
      const signal = run(frame);
      if (signal !== 0) return signal;
    }
    return 0;
  };
}

function compileStatement(statement: Statement, context: StatementContext): RunStatement {
  const run = compileKind(statement, context);
  const { line } = statement;
  return (frame) => {
    spend();
    frame.render.line = line;
    return run(frame);
  };
}

function compileKind(statement: Statement, context: StatementContext): RunStatement {
  switch (statement.type) {
    case 'Output':
      return compileOutput(statement, context);
    case 'If':
      return compileIf(statement, context);
    case 'For':
      return compileFor(statement, context);
    case 'Assign':
      return compileAssign(statement.target, compileExpression(statement.value, context), context);
    case 'AssignBlock':
      return compileAssignBlock(statement, context);
    case 'Macro':
      return compileMacro(statement, context);
    case 'CallBlock':
      return compileCallBlock(statement, context);
    case 'FilterBlock':
      return compileFilterBlock(statement, context);
    case 'With':
      return compileWith(statement, context);
    case 'Block':
      return compileBlock(statement, context);
    case 'Load':
      return () => {
        throw typeError(`{% ${statement.tag} %}: no loader for this environment specified`);
      };
    default: {
      const tag = statement.type.toLowerCase();
      if (!context.isInLoop) throw syntaxError(`'${tag}' outside loop`, statement.line);
      const signal = statement.type === 'Break' ? BREAK : CONTINUE;
      return () => signal;
    }
  }
}

function compileOutput({ parts }: Output, context: StatementContext): RunStatement {
  const writes = parts.map((part): ((frame: Frame) => void) => {
    if (typeof part === 'string') return (frame) => frame.render.write(part);
    const value = compileExpression(part, { ...context, isPrinted: isConstant(part) });
    return (frame) => frame.render.write(str(value(frame)));
  });
  return (frame) => {
    for (const write of writes) write(frame);
    return 0;
  };
}

function compileIf(node: If, context: StatementContext): RunStatement {
  const softContext = { ...context, isSoft: true };
  const branches = [node, ...node.branches].map(({ test, body, line }) => ({
    line,
    test: compileExpression(test, softContext),
    run: compileBody(body, softContext),
  }));
  const otherwise = compileBody(node.otherwise, softContext);
  return (frame) => {
    for (const { test, run, line } of branches) {
      frame.render.line = line;
      if (toBoolean(test(frame))) return run(frame);
    }
    return otherwise(frame);
  };
}

function compileAssignBlock(node: AssignBlock, context: StatementContext): RunStatement {
  const bodyContext = nestContext(context);
  bodyContext.symbols.visitAll([...(node.filter === null ? [] : [node.filter]), ...node.body]);
  const [enter, exit] = [
    compileEntry(bodyContext.symbols, bodyContext.scope),
    compileExit(bodyContext.symbols, bodyContext.scope),
  ];
  const body = compileBody(node.body, bodyContext);
  let text = '';
  const filter = node.filter === null ? null : compileFilter(node.filter, bodyContext, () => text);
  const assign = compileAssign(node.target, (frame) => (filter ? filter(frame) : text), context);
  return (frame) => {
    enter(frame);
    let signal: Signal = 0;
    const written = frame.render.capture(() => {
      signal = body(frame);
      return signal;
    });
    if (written === null) return signal;
    text = written;
    assign(frame);
    exit(frame);
    return 0;
  };
}

function compileFilterBlock(node: FilterBlock, context: StatementContext): RunStatement {
  const bodyContext = nestContext(context);
  bodyContext.symbols.visitAll([...node.body, node.filter]);
  const [enter, exit] = [
    compileEntry(bodyContext.symbols, bodyContext.scope),
    compileExit(bodyContext.symbols, bodyContext.scope),
  ];
  const body = compileBody(node.body, bodyContext);
  let text = '';
  const filter = compileFilter(node.filter, bodyContext, () => text);
  return (frame) => {
    enter(frame);
    let signal: Signal = 0;
    const written = frame.render.capture(() => {
      signal = body(frame);
      return signal;
    });
    if (written === null) return signal;
    text = written;
    const value = filter(frame);
    // Python joins the parts of a template, which must be texts.
    if (typeof value !== 'string' && !(value instanceof Markup))
      throw typeError(`sequence item 0: expected str instance, ${typeName(value)} found`);
    frame.render.write(str(value));
    exit(frame);
    return 0;
  };
}

function compileWith(node: With, context: StatementContext): RunStatement {
  const bodyContext = nestContext(context);
  bodyContext.symbols.visitAll([...node.targets, ...node.body]);
  const [enter, exit] = [
    compileEntry(bodyContext.symbols, bodyContext.scope),
    compileExit(bodyContext.symbols, bodyContext.scope),
  ];
  const values = node.values.map((value) => compileExpression(value, context));
  const assigns = node.targets.map((target) => compileTarget(target, bodyContext));
  const body = compileBody(node.body, bodyContext);
  return (frame) => {
    enter(frame);
    for (const [i, assign] of assigns.entries()) assign(frame, required(values[i])(frame));
    const signal = body(frame);
    if (signal === 0) exit(frame);
    return signal;
  };
}

function compileBlock(node: Block, context: StatementContext): RunStatement {
  const { blocks } = context;
  if (blocks.has(node.name)) throw syntaxError(`block '${node.name}' defined twice`, node.line);
  blocks.set(node.name, null);
  if (node.isScoped && !context.isTop) {
    throw syntaxError('a scoped block within other statements is not supported', node.line);
  }
  const run = compileRoot(node.body, blocks, false);
  return (frame) => {
    if (node.isRequired) throw runtimeError(`Required block '${node.name}' not found`);
    run(new Frame(null, frame.render));
    return 0;
  };
}
