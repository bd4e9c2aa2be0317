// State of a render: variables, the text so far, and the global functions of templates.

import { defined, required } from '../../runtime/required.js';
import { isEqual } from './arithmetic.js';
import {
  MAX_RANGE,
  requireBounded,
  runDeeper,
  spend,
  TemplateFault,
  typeError,
  valueError,
} from './fault.js';
import { requireIndex } from './numbers.js';
import { str } from './print.js';
import { findLength } from './sequences.js';
import { type Argument, type Body, defineNative, orDefault } from './signature.js';
import { strftime } from './strftime.js';
import {
  Callable,
  Dict,
  DONE,
  iterate,
  iterateList,
  type Keywords,
  MISSING,
  Namespace,
  type Next,
  Opaque,
  Range,
  Tuple,
  toList,
  toTextOrNull,
  typeName,
  Undefined,
  type Value,
} from './values.js';

/** A part of a text, in UTF-16 units. */
export interface Span {
  start: number;
  end: number;
}

/** Private-use characters that mark the text of {% generation %} inside the rendered text. */
export interface Marks {
  open: string;
  close: string;
}

/** One render of a template. */
export class Render {
  /** Text of the template, macro or block in progress. */
  out = '';
  /** Number of captured texts that enclose the current one. */
  captures = 0;
  line = 0;
  /** Spans of {% generation %} that were written directly to the result. */
  readonly spans: Span[] = [];
  /** Whether {% generation %} wrote into a captured text. */
  hasCapturedSpan = false;
  /** Variables that the template has set. */
  private readonly assigned = new Map<string, Value>();

  constructor(
    private readonly variables: ReadonlyMap<string, Value>,
    readonly marks: Marks | null,
  ) {}

  resolve(name: string): Value | typeof MISSING {
    const stored = this.assigned.get(name);
    if (stored !== undefined) return stored;
    const variable = this.variables.get(name);
    if (variable !== undefined) return variable;
    return GLOBALS.get(name) ?? MISSING;
  }

  set(name: string, value: Value): void {
    this.assigned.set(name, value);
  }

  write(text: string): void {
    this.out = requireBounded(this.out + text);
  }

  /** Returns the text that `work` writes; null if it ends early. */
  capture(work: () => number): string | null {
    const before = this.out;
    this.out = '';
    this.captures++;
    const signal = work();
    const text = this.out;
    this.out = before;
    this.captures--;
    return signal === 0 ? text : null;
  }
}

/** The variable "loop". */
export class LoopContext extends Callable {
  readonly type = 'LoopContext';
  private index0 = -1;
  private known: number | null = null;
  private after: Value | typeof MISSING | typeof DONE = MISSING;
  private current: Value | typeof MISSING = MISSING;
  private before: Value | typeof MISSING = MISSING;
  private lastChanged: Value | null = null;
  private source: Next;

  constructor(
    private readonly iterable: Value,
    private readonly recurse: ((iterable: Value, depth: number) => Value) | null = null,
    private readonly depth0 = 0,
  ) {
    super();
    this.source = iterate(iterable);
  }

  next(): Value | typeof DONE {
    const value = this.after === MISSING ? this.source() : this.after;
    this.after = MISSING;
    if (value === DONE) return DONE;
    this.index0++;
    this.before = this.current;
    this.current = value;
    return value;
  }

  /** Iterating over `loop` takes the remaining items, as pairs (item, loop). */
  override iterate(): Next {
    return () => {
      const item = this.next();
      return item === DONE ? DONE : new Tuple([item, this]);
    };
  }

  private peek(): Value | typeof DONE {
    if (this.after === MISSING) this.after = this.source();
    return this.after;
  }

  override get length(): number {
    if (this.known !== null) return this.known;
    const length = findLength(this.iterable);
    if (length !== null) this.known = length;
    else {
      const hasAfter = this.after !== MISSING && this.after !== DONE;
      const rest: Value[] = [];
      for (let item = this.source(); item !== DONE; item = this.source()) rest.push(item);
      this.source = iterateList(rest);
      this.known = rest.length + this.index0 + 1 + (hasAfter ? 1 : 0);
    }
    return this.known;
  }

  call(args: readonly Value[], keywords: Keywords): Value {
    if (args.length !== 1 || keywords.size > 0) throw typeError('loop() takes 1 argument');
    if (this.recurse === null) {
      throw typeError("The loop must have the 'recursive' marker to be called recursively.");
    }
    return this.recurse(defined(args[0]), this.depth0 + 1);
  }

  describe(): string {
    return `<LoopContext ${this.index0 + 1}/${this.length}>`;
  }

  override attribute(name: string): Value | typeof MISSING {
    switch (name) {
      case 'index':
        return this.index0 + 1;
      case 'index0':
        return this.index0;
      case 'first':
        return this.index0 === 0;
      case 'last':
        return this.peek() === DONE;
      case 'length':
        return this.length;
      case 'revindex':
        return this.length - this.index0;
      case 'revindex0':
        return this.length - this.index0 - 1;
      case 'depth':
        return this.depth0 + 1;
      case 'depth0':
        return this.depth0;
      default:
        return this.readNeighbour(name);
    }
  }

  private readNeighbour(name: string): Value | typeof MISSING {
    if (name === 'previtem') {
      if (this.index0 === 0) return new Undefined('there is no previous item');
      return this.before;
    }
    if (name === 'nextitem') {
      const next = this.peek();
      return next === DONE ? new Undefined('there is no next item') : next;
    }
    if (name === 'cycle')
      return defineNative('cycle', '*args', (args: readonly Value[]) => this.cycle(args));
    if (name !== 'changed') return MISSING;
    return defineNative('changed', '*args', (args: readonly Value[]) => this.hasChanged(args));
  }

  private cycle(args: readonly Value[]): Value {
    if (args.length === 0) throw typeError('no items for cycling given');
    return defined(args[this.index0 % args.length]);
  }

  private hasChanged(args: readonly Value[]): boolean {
    const value = new Tuple(args);
    if (this.lastChanged !== null && isEqual(this.lastChanged, value)) return false;
    this.lastChanged = value;
    return true;
  }
}

/** Description of a function that {% macro %} or {% call %} defines. */
export interface MacroPlan {
  /** Null for a call block. */
  name: string | null;
  parameters: readonly string[];
  takesCaller: boolean;
  takesKeywords: boolean;
  takesRest: boolean;
  /**
   * Runs the body with the parameters, then caller, keywords and further arguments if it takes
   * them.
   */
  run(values: readonly (Value | typeof MISSING)[]): Value;
}

export class Macro extends Callable {
  readonly type = 'Macro';

  constructor(private readonly plan: MacroPlan) {
    super();
  }

  call(args: readonly Value[], keywords: Keywords): Value {
    const { parameters, takesCaller, takesKeywords, takesRest, name } = this.plan;
    const others = new Map(keywords);
    const values: (Value | typeof MISSING)[] = args.slice(0, parameters.length);
    let hasCaller = values.length === parameters.length && parameters.includes('caller');
    for (const parameter of parameters.slice(values.length)) {
      values.push(others.has(parameter) ? (others.get(parameter) as Value) : MISSING);
      others.delete(parameter);
      hasCaller ||= parameter === 'caller';
    }
    if (takesCaller && !hasCaller) {
      values.push(others.get('caller') ?? new Undefined('No caller defined'));
      others.delete('caller');
    }
    const nameText = name === null ? 'None' : `'${name}'`;
    if (takesKeywords) values.push(Dict.of(others));
    else
      for (const key of others.keys())
        throw typeError(`macro ${nameText} takes no keyword argument '${key}'`);
    if (takesRest) values.push(new Tuple(args.slice(parameters.length)));
    else if (args.length > parameters.length) {
      throw typeError(`macro ${nameText} takes not more than ${parameters.length} argument(s)`);
    }
    spend();
    return runDeeper(() => this.plan.run(values));
  }

  describe(): string {
    const { name } = this.plan;
    return name === null ? '<Macro anonymous>' : `<Macro '${name}'>`;
  }

  override attribute(attribute: string): Value | typeof MISSING {
    const { name, parameters, takesCaller, takesKeywords, takesRest } = this.plan;
    if (attribute === 'name') return name;
    if (attribute === 'arguments') return new Tuple(parameters);
    if (attribute === 'caller') return takesCaller;
    if (attribute === 'catch_kwargs') return takesKeywords;
    return attribute === 'catch_varargs' ? takesRest : MISSING;
  }
}

/** Result of cycler(). */
class Cycler extends Opaque {
  readonly type = 'Cycler';
  private at = 0;

  constructor(private readonly items: readonly Value[]) {
    super();
    if (items.length === 0) {
      throw new TemplateFault('RuntimeError', 'at least one item has to be provided');
    }
  }

  describe(): string {
    return '<jinja2.utils.Cycler object at 0x7f0000000000>';
  }

  attribute(name: string): Value | typeof MISSING {
    const current = defined(this.items[this.at]);
    if (name === 'current') return current;
    if (name === 'items') return new Tuple(this.items);
    if (name === 'pos') return this.at;
    if (name === 'reset') {
      return defineNative('reset', '', () => {
        this.at = 0;
        return null;
      });
    }
    if (name !== 'next') return MISSING;
    return defineNative('next', '', () => {
      const item = defined(this.items[this.at]);
      this.at = (this.at + 1) % this.items.length;
      return item;
    });
  }
}

/** Result of joiner(): returns '' at the first call, then the separator. */
class Joiner extends Callable {
  readonly type = 'Joiner';
  private isUsed = false;

  constructor(private readonly separator: Value) {
    super();
  }

  call(args: readonly Value[], keywords: Keywords): Value {
    if (args.length > 0 || keywords.size > 0) throw typeError('joiner() takes no arguments');
    const text = this.isUsed ? this.separator : '';
    this.isUsed = true;
    return text;
  }

  describe(): string {
    return '<jinja2.utils.Joiner object at 0x7f0000000000>';
  }

  override attribute(name: string): Value | typeof MISSING {
    if (name === 'sep') return this.separator;
    return name === 'used' ? this.isUsed : MISSING;
  }
}

/** range(), within the limit of the sandbox. */
function createRange(args: readonly Value[]): Value {
  if (args.length === 0 || args.length > 3) {
    throw typeError(`range expected 1 to 3 arguments, got ${args.length}`);
  }
  const bounds = args.map((arg) => {
    if (arg instanceof Undefined)
      throw typeError("'Undefined' object cannot be interpreted as an integer");
    return requireIndex(arg);
  });
  const [first, last, step = 1] = bounds.length === 1 ? [0, bounds[0], 1] : bounds;
  if (step === 0) throw valueError('range() arg 3 must not be zero');
  const created = new Range(first, required(last), step);
  if (created.length > MAX_RANGE) {
    const message = `Range too big. The sandbox blocks ranges larger than MAX_RANGE (${MAX_RANGE}).`;
    throw new TemplateFault('OverflowError', message);
  }
  return created;
}

/** dict(): pairs or a mapping, then keywords. */
function createDict(args: readonly Value[], keywords: Keywords): Dict {
  if (args.length > 1) throw typeError(`dict expected at most 1 argument, got ${args.length}`);
  const created = new Dict();
  const [source] = args;
  if (source instanceof Undefined) {
    // dict() reads the attribute "keys" first, which fails for an undefined value.
    throw source.fault();
  }
  if (source instanceof Dict) for (const [key, value] of source.entries()) created.set(key, value);
  else if (source !== undefined) for (const pair of toList(source)) setPair(created, pair);
  for (const [key, value] of keywords) created.set(key, value);
  return created;
}

function setPair(dict: Dict, pair: Value): void {
  const parts = toList(pair);
  if (parts.length !== 2) {
    const message = `dictionary update sequence element has length ${parts.length}; 2 is required`;
    throw valueError(message);
  }
  dict.set(defined(parts[0]), defined(parts[1]));
}

function raiseException(message: Value): never {
  throw new TemplateFault('TemplateError', str(message));
}

function formatNow(format: Value): Value {
  const text = toTextOrNull(format);
  if (text === null) throw typeError(`strftime() argument 1 must be str, not ${typeName(format)}`);
  return strftime(new Date(), text);
}

const join: Body = (separator: Argument) => new Joiner(orDefault(separator, ', '));

/** Global functions. Variables with the same names hide them. */
const GLOBALS: ReadonlyMap<string, Value> = new Map<string, Value>([
  ['range', defineNative('range', '*args', createRange)],
  ['dict', defineNative('dict', '*args **keywords', createDict)],
  ['cycler', defineNative('cycler', '*args', (items: readonly Value[]) => new Cycler(items))],
  ['joiner', defineNative('joiner', 'sep?', join)],
  [
    'namespace',
    defineNative('namespace', '*args **keywords', (args: readonly Value[], keywords: Keywords) => {
      return new Namespace(createDict(args, keywords));
    }),
  ],
  ['raise_exception', defineNative('raise_exception', 'message', raiseException)],
  ['strftime_now', defineNative('strftime_now', 'format', formatNow)],
]);

/** Calls a value. Throws TypeError. */
export function callValue(callee: Value, args: readonly Value[], keywords: Keywords): Value {
  spend();
  if (callee instanceof Callable) return callee.call(args, keywords);
  if (callee instanceof Undefined) throw callee.fault();
  throw typeError(`'${typeName(callee)}' object is not callable`);
}
