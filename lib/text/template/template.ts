// A chat template as transformers evaluates it: jinja2 with Python's values, in a sandbox.

import { formatValue } from '../../runtime/format-value.js';
import { resetMeter, TemplateFault, TemplateLimit } from './fault.js';
import { parse } from './parser.js';
import { type Marks, Render, type Span } from './render.js';
import { compileTemplate, type Program } from './statements.js';
import { Dict, Float, normalized, type Value } from './values.js';

/** A rendered template. */
export interface Rendered {
  text: string;
  /** What {% generation %} wrote; null if a macro, a filter or {% set %} passed it on. */
  spans: readonly Span[] | null;
}

export class Template {
  private readonly program: Program;

  /** Throws TemplateFault if jinja2 would not compile the text. */
  constructor(text: string) {
    try {
      this.program = compileTemplate(parse(text));
    } catch (error) {
      throw locate(error, 0);
    }
  }

  /**
   * Throws TemplateFault where Python would raise, and TemplateLimit at a bound of the sandbox.
   * `marks` stand around what {% generation %} writes.
   */
  render(variables: Readonly<Record<string, unknown>>, marks: Marks | null = null): Rendered {
    resetMeter();
    const render = new Render(given(variables), marks);
    try {
      this.program(render);
    } catch (error) {
      throw locate(error, render.line);
    }
    return { text: render.out, spans: render.hasCapturedSpan ? null : render.spans };
  }
}

/** Notes where the template failed. */
function locate(error: unknown, line: number): unknown {
  const fault =
    (error as Error).name === 'RangeError'
      ? new TemplateFault('RecursionError', 'maximum recursion depth exceeded')
      : error;
  if (fault instanceof TemplateFault || fault instanceof TemplateLimit) fault.line ||= line;
  return fault;
}

// Converts variables of a program to Python values, as json.loads() reads JSON.

/** Values within each other. */
const DEPTH = 500;

/** Throws TemplateFault for values that JSON has no form of. */
function given(variables: Readonly<Record<string, unknown>>): Map<string, Value> {
  const values = new Map<string, Value>();
  for (const [name, variable] of Object.entries(variables)) {
    if (variable !== undefined) values.set(name, toValue(variable, 0));
  }
  return values;
}

function toValue(given: unknown, depth: number): Value {
  switch (typeof given) {
    case 'string':
    case 'boolean':
      return given;
    case 'number':
      return numberOf(given);
    case 'bigint':
      return normalized(given);
    case 'undefined':
      return null;
    case 'object':
      break;
    default:
      throw new TemplateFault('TypeError', `variables of JSON, not ${formatValue(given)}`);
  }
  if (given === null) return null;
  if (depth > DEPTH)
    throw new TemplateFault('RecursionError', `more than ${DEPTH} values within each other`);
  if (Array.isArray(given)) return given.map((item) => toValue(item, depth + 1));
  if (ArrayBuffer.isView(given)) return Array.from(given as Uint8Array, (item) => toValue(item, 0));
  if (given instanceof Date) return given.toISOString();
  const dict = new Dict();
  const entries = given instanceof Map ? given : Object.entries(given);
  for (const [key, item] of entries) {
    if (item !== undefined) dict.set(toValue(key, depth + 1), toValue(item, depth + 1));
  }
  return dict;
}

/** JSON's numbers without a point are integers, which JavaScript no longer shows above 2^53. */
function numberOf(number: number): Value {
  if (Number.isSafeInteger(number)) return number + 0;
  const isWhole = Number.isInteger(number) && Math.abs(number) < 1e21;
  return isWhole ? normalized(BigInt(number)) : new Float(number);
}
