// Compiles expressions to closures that compute their values in a frame.
import { required } from '../../runtime/required.js';
import {
  add,
  contains,
  divide,
  floorDivision,
  isEqual,
  isOrdered,
  multiply,
  negate,
  positive,
  power,
  remainder,
  subtract,
} from './arithmetic.js';
import { readAttribute, readItem } from './attributes.js';
import {
  requireBounded,
  runtimeError,
  spend,
  syntaxError,
  TemplateFault,
  typeError,
} from './fault.js';
import { FILTERS } from './list-filters.js';
import type { Arguments, Call, Expression, Filter, Test } from './nodes.js';
import { str } from './print.js';
import { callValue, type Render } from './render.js';
import { slice } from './sequences.js';
import type { BoundFunction } from './signature.js';
import type { FunctionScope, Symbols, Variable } from './symbols.js';
import { TESTS } from './tests.js';
import {
  Dict,
  type Keywords,
  MISSING,
  NO_KEYWORDS,
  Tuple,
  toBoolean,
  toList,
  toTextOrNull,
  typeName,
  Undefined,
  type Value,
} from './values.js';

/** Variables of a running function. */
export class Frame {
  readonly slots: (Value | typeof MISSING)[] = [];

  constructor(
    readonly outer: Frame | null,
    readonly render: Render,
  ) {}
}

export type Compute = (frame: Frame) => Value;

/** Context of compiled code: its variables and its function. */
export interface CompileContext {
  symbols: Symbols;
  scope: FunctionScope;
  /** Whether an unknown filter is an error only at run time. */
  isSoft: boolean;
  /** Whether the code is in a printed constant. */
  isPrinted?: boolean;
}

/** Reads and writes a variable from a scope. */
export interface VariableAccess {
  read(frame: Frame): Value | typeof MISSING;
  write(frame: Frame, value: Value | typeof MISSING): void;
}

export function createAccess({ id, scope }: Variable, from: FunctionScope): VariableAccess {
  const slot = scope.slotOf(id);
  let hops = 0;
  for (let current = from; current !== scope; current = required(current.outer)) hops++;
  const owner = (frame: Frame): Frame => {
    let ancestor = frame;
    for (let i = 0; i < hops; ++i) ancestor = required(ancestor.outer);
    return ancestor;
  };
  if (hops === 0) {
    return {
      read: (frame) => frame.slots[slot] as Value | typeof MISSING,
      write: (frame, value) => {
        frame.slots[slot] = value;
      },
    };
  }
  return {
    read: (frame) => owner(frame).slots[slot] as Value | typeof MISSING,
    write: (frame, value) => {
      owner(frame).slots[slot] = value;
    },
  };
}

function readName(name: string, context: CompileContext): Compute {
  const { read } = createAccess(required(context.symbols.find(name)), context.scope);
  return (frame) => {
    const value = read(frame);
    if (value !== MISSING && value !== undefined) return value;
    return new Undefined(`'${name}' is undefined`);
  };
}

const OPERATORS: Readonly<Record<string, (a: Value, b: Value) => Value>> = {
  '+': add,
  '-': subtract,
  '*': multiply,
  '/': divide,
  '//': floorDivision,
  '%': remainder,
  '**': power,
};

const COMPARISONS: Readonly<Record<string, (a: Value, b: Value) => boolean>> = {
  '==': isEqual,
  '!=': (a, b) => !isEqual(a, b),
  in: (a, b) => contains(b, a),
  'not in': (a, b) => !contains(b, a),
  ...Object.fromEntries(
    ['<', '<=', '>', '>='].map((operator) => [
      operator,
      (a: Value, b: Value) => isOrdered(operator, a, b),
    ]),
  ),
};

export function compileExpression(node: Expression, context: CompileContext): Compute {
  const compile = (expression: Expression): Compute => compileExpression(expression, context);
  switch (node.type) {
    case 'Constant': {
      const { value } = node;
      return () => value;
    }
    case 'Name':
      return readName(node.name, context);
    case 'Attribute': {
      const object = compile(node.node);
      const { name } = node;
      return (frame) => readAttribute(object(frame), name);
    }
    case 'Item':
      return compileItem(node.node, node.key, context);
    case 'Binary': {
      const [left, right] = [compile(node.left), compile(node.right)];
      const operator = required(OPERATORS[node.operator]);
      return (frame) => operator(left(frame), right(frame));
    }
    case 'Logic': {
      const [left, right] = [compile(node.left), compile(node.right)];
      const isOr = node.operator === 'or';
      return (frame) => {
        const value = left(frame);
        return toBoolean(value) === isOr ? value : right(frame);
      };
    }
    case 'Unary':
      return compileUnary(node.operator, compile(node.node));
    case 'Call':
      return compileCall(node, context);
    case 'Filter':
      return compileFilter(node, context, null);
    case 'Test':
      return compileTest(node, context);
    default:
      return compileOther(node, context);
  }
}

function compileUnary(operator: 'not' | '-' | '+', value: Compute): Compute {
  if (operator === 'not') return (frame) => !toBoolean(value(frame));
  return operator === '-' ? (frame) => negate(value(frame)) : (frame) => positive(value(frame));
}

function compileOther(node: Expression, context: CompileContext): Compute {
  const compile = (expression: Expression): Compute => compileExpression(expression, context);
  switch (node.type) {
    case 'Compare':
      return compileComparison(compile(node.node), node.operations, context);
    case 'Condition': {
      const softContext = { ...context, isSoft: true };
      const [test, yes] = [
        compileExpression(node.test, softContext),
        compileExpression(node.yes, softContext),
      ];
      const no = node.no === null ? undefinedElse : compileExpression(node.no, softContext);
      return (frame) => (toBoolean(test(frame)) ? yes(frame) : no(frame));
    }
    case 'Concat': {
      const parts = node.nodes.map(compile);
      return (frame) => {
        let text = '';
        for (const part of parts) text += str(part(frame));
        return requireBounded(text);
      };
    }
    case 'List': {
      const items = node.items.map(compile);
      return (frame) => computeItems(items, frame);
    }
    case 'Tuple': {
      const items = node.items.map(compile);
      return (frame) => new Tuple(computeItems(items, frame));
    }
    case 'Dict':
      return compileDict(node.pairs, context);
    default:
      throw syntaxError('invalid syntax', 0);
  }
}

const undefinedElse = (): Value =>
  new Undefined('the inline if-expression evaluated to false and no else section was defined.');

function computeItems(items: readonly Compute[], frame: Frame): Value[] {
  spend(items.length);
  return items.map((one) => one(frame));
}

function compileDict(
  pairs: readonly { key: Expression; value: Expression }[],
  context: CompileContext,
): Compute {
  const entries = pairs.map(({ key, value }) => ({
    key: compileExpression(key, context),
    value: compileExpression(value, context),
  }));
  return (frame) => {
    spend(entries.length);
    const dict = new Dict();
    for (const { key, value } of entries) dict.set(key(frame), value(frame));
    return dict;
  };
}

/** Compiles a < b < c, which computes each operand once and stops at the first false comparison. */
function compileComparison(
  first: Compute,
  operations: readonly { operator: string; node: Expression }[],
  context: CompileContext,
): Compute {
  const steps = operations.map(({ operator, node }) => ({
    holds: required(COMPARISONS[operator]),
    value: compileExpression(node, context),
  }));
  return (frame) => {
    let left = first(frame);
    for (const { holds, value } of steps) {
      const right = value(frame);
      if (!holds(left, right)) return false;
      left = right;
    }
    return true;
  };
}

function compileItem(object: Expression, key: Expression, context: CompileContext): Compute {
  const container = compileExpression(object, context);
  if (key.type !== 'Slice') {
    const at = compileExpression(key, context);
    return (frame) => readItem(container(frame), at(frame));
  }
  const bounds = key.bounds.map((bound) =>
    bound === null ? null : compileExpression(bound, context),
  );
  const cut = context.isPrinted ? sliceOrUndefined : slice;
  return (frame) => {
    const value = container(frame);
    return cut(
      value,
      bounds.map((bound) => (bound === null ? null : bound(frame))),
    );
  };
}

/**
 * Evaluates a slice. In a printed constant, an invalid slice is undefined; elsewhere it is a
 * TypeError.
 */
function sliceOrUndefined(value: Value, bounds: readonly (Value | null)[]): Value {
  try {
    return slice(value, bounds);
  } catch (error) {
    if (!(error instanceof TemplateFault) || error.kind !== 'TypeError') throw error;
    return new Undefined(error.message);
  }
}

type ComputeArguments = (frame: Frame) => { args: Value[]; keywords: Keywords };

/** Compiles the arguments of a call. The items of `rest` follow the positional arguments. */
function compileArguments(
  { args, keywords, rest, restKeywords }: Arguments,
  context: CompileContext,
): ComputeArguments {
  const operands = args.map((arg) => compileExpression(arg, context));
  const namedValues = keywords.map(({ key, value }) => ({
    key,
    value: compileExpression(value, context),
  }));
  const more = rest === null ? null : compileExpression(rest, context);
  const moreNamed = restKeywords === null ? null : compileExpression(restKeywords, context);
  if (namedValues.length === 0 && more === null && moreNamed === null) {
    return (frame) => ({ args: operands.map((one) => one(frame)), keywords: NO_KEYWORDS });
  }
  return (frame) => {
    const passed = operands.map((one) => one(frame));
    const keywordValues = new Map<string, Value>();
    for (const { key, value } of namedValues) keywordValues.set(key, value(frame));
    if (more !== null) passed.push(...toList(more(frame)));
    if (moreNamed !== null) addKeywords(keywordValues, moreNamed(frame));
    return { args: passed, keywords: keywordValues };
  };
}

function addKeywords(keywords: Map<string, Value>, mapping: Value): void {
  if (!(mapping instanceof Dict)) {
    throw typeError(`argument after ** must be a mapping, not ${typeName(mapping)}`);
  }
  for (const [key, value] of mapping.entries()) {
    const name = toTextOrNull(key);
    if (name === null) throw typeError('keywords must be strings');
    if (keywords.has(name)) throw typeError(`got multiple values for keyword argument '${name}'`);
    keywords.set(name, value);
  }
}

/** Compiles a call. `caller` is the body of a call block. */
export function compileCall(
  node: Call,
  context: CompileContext,
  caller: Compute | null = null,
): Compute {
  const callee = compileExpression(node.node, context);
  const passed = compileArguments(node, context);
  return (frame) => {
    const target = callee(frame);
    const { args, keywords } = passed(frame);
    if (caller === null) return callValue(target, args, keywords);
    return callValue(target, args, new Map([...keywords, ['caller', caller(frame)]]));
  };
}

/** Compiles a filter. `input` is the text of a filter block. */
export function compileFilter(
  node: Filter,
  context: CompileContext,
  input: Compute | null,
): Compute {
  const value =
    node.node === null
      ? required(input)
      : node.node.type === 'Filter'
        ? compileFilter(node.node, context, input)
        : compileExpression(node.node, context);
  const run = requireFunction(FILTERS, 'filter', node, context);
  const passed = compileArguments(node, context);
  return (frame) => {
    spend();
    const target = value(frame);
    const { args, keywords } = passed(frame);
    return run([target, ...args], keywords);
  };
}

function compileTest(node: Test, context: CompileContext): Compute {
  const value = compileExpression(node.node, context);
  const run = requireFunction(TESTS, 'test', node, context);
  const passed = compileArguments(node, context);
  return (frame) => {
    const target = value(frame);
    const { args, keywords } = passed(frame);
    return run([target, ...args], keywords);
  };
}

function requireFunction(
  table: ReadonlyMap<string, BoundFunction>,
  kind: string,
  { name, line }: { name: string; line: number },
  { isSoft }: CompileContext,
): BoundFunction {
  const fn = table.get(name);
  if (fn !== undefined) return fn;
  if (!isSoft) throw syntaxError(`No ${kind} named '${name}'.`, line);
  return () => {
    throw runtimeError(`No ${kind} named '${name}' found.`);
  };
}
