// Compiles {% macro %}, {% call %} and {% generation %}.
import { required } from '../../runtime/required.js';
import { compileCall, compileExpression, createAccess, Frame } from './expressions.js';
import { syntaxError } from './fault.js';
import type { CallBlock, Macro as MacroNode, Target } from './nodes.js';
import { str } from './print.js';
import { Macro, type MacroPlan } from './render.js';
import {
  compileAssign,
  compileEntry,
  nestContext,
  type RunStatement,
  type StatementContext,
} from './statement-context.js';
import { FunctionScope, findUndeclared } from './symbols.js';
import { MISSING, type Value } from './values.js';

interface CompiledMacro {
  plan: Omit<MacroPlan, 'run'>;
  run(outer: Frame, values: readonly (Value | typeof MISSING)[]): string;
}

function compileSignature(node: MacroNode | CallBlock, context: StatementContext): CompiledMacro {
  const scope = new FunctionScope(context.scope);
  const macroContext = { ...nestContext(context, scope), isInLoop: false };
  const content = [...node.parameters, ...node.defaults, ...node.body];
  macroContext.symbols.visitAll(content);
  const names = node.parameters.map(({ name }) => name);
  const undeclared = findUndeclared(node.body, ['caller', 'kwargs', 'varargs']);
  const at = names.indexOf('caller');
  const hasDefault = at >= names.length - node.defaults.length;
  if (undeclared.has('caller') && at >= 0 && !hasDefault) {
    throw syntaxError(
      'the argument "caller" of a macro must be omitted or have a default',
      node.line,
    );
  }
  const extra: string[] = [];
  if (undeclared.has('caller') && at < 0) extra.push('caller');
  for (const name of ['kwargs', 'varargs']) {
    if (undeclared.has(name) && !names.includes(name)) extra.push(name);
  }
  for (const name of extra) macroContext.symbols.declareParameter(name);
  macroContext.symbols.visitAll(content);
  const accesses = [...names, ...extra].map((name) =>
    createAccess(required(macroContext.symbols.find(name)), scope),
  );
  const defaults = node.parameters.map((_, i) => {
    const value = node.defaults[i - names.length + node.defaults.length];
    return value === undefined ? null : compileExpression(value, macroContext);
  });
  const enter = compileEntry(macroContext.symbols, scope);
  const body = context.compileBody(node.body, macroContext);
  const plan = {
    name: node.type === 'Macro' ? node.name : null,
    parameters: names,
    takesCaller: undeclared.has('caller'),
    takesKeywords: extra.includes('kwargs'),
    takesRest: extra.includes('varargs'),
  };
  const run = (outer: Frame, values: readonly (Value | typeof MISSING)[]): string => {
    const frame = new Frame(outer, outer.render);
    for (const [i, { write }] of accesses.entries()) {
      const value = values[i];
      write(frame, value === undefined ? MISSING : value);
    }
    enter(frame);
    for (const [i, value] of defaults.entries()) {
      const access = required(accesses[i]);
      if (value !== null && access.read(frame) === MISSING) access.write(frame, value(frame));
    }
    return required(frame.render.capture(() => body(frame)));
  };
  return { plan, run };
}

const createMacro = ({ plan, run }: CompiledMacro, frame: Frame): Macro =>
  new Macro({ ...plan, run: (values) => run(frame, values) });

export function compileMacro(node: MacroNode, context: StatementContext): RunStatement {
  const macro = compileSignature(node, context);
  const target: Target = { type: 'Name', name: node.name, context: 'store' };
  return compileAssign(target, (frame) => createMacro(macro, frame), context);
}

export function compileCallBlock(node: CallBlock, context: StatementContext): RunStatement {
  const caller = compileSignature(node, context);
  if (node.call === null) return compileGeneration(caller);
  const call = compileCall(node.call, context, (frame) => createMacro(caller, frame));
  return (frame) => {
    frame.render.write(str(call(frame)));
    return 0;
  };
}

/** Compiles {% generation %}: records the span of its text, or writes marks around it. */
function compileGeneration(body: CompiledMacro): RunStatement {
  return (frame) => {
    const { render } = frame;
    const text = str(createMacro(body, frame).call([], new Map()));
    const { marks } = render;
    if (render.captures > 0) render.hasCapturedSpan = true;
    const start = render.out.length;
    render.write(marks === null ? text : `${marks.open}${text}${marks.close}`);
    render.spans.push({ start, end: start + text.length });
    return 0;
  };
}
