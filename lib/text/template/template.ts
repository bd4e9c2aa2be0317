// Renders chat templates as transformers does: jinja2 in a sandbox, with Python's values.

import { formatValue } from '../../runtime/format-value.js';
import { resetMeter, TemplateFault, TemplateLimit } from './fault.js';
import { parseTemplate } from './parser.js';
import { type Marks, Render, type Span } from './render.js';
import { compileTemplate, type Program } from './statements.js';
import { Dict, Float, normalizeInteger, type Value } from './values.js';

/** A rendered template. */
export interface RenderResult {
  text: string;
  /** Spans of {% generation %}; null if a macro, a filter or {% set %} captured the text. */
  spans: readonly Span[] | null;
}

export class Template {
  private readonly program: Program;

  /** Compiles a template. Throws TemplateFault if jinja2 would refuse the text. */
  constructor(text: string) {
    try {
      this.program = compileTemplate(parseTemplate(text));
    } catch (error) {
      throw locate(error, 0);
    }
  }

  /**
   * Renders the template. Throws TemplateFault where Python would raise an exception, and
   * TemplateLimit at a limit of the sandbox. `marks` are written around the text of {% generation
   * %}.
   */
  render(variables: Readonly<Record<string, unknown>>, marks: Marks | null = null): RenderResult {
    resetMeter();
    const render = new Render(convertVariables(variables), marks);
    try {
      this.program(render);
    } catch (error) {
      throw locate(error, render.line);
    }
    return { text: render.out, spans: render.hasCapturedSpan ? null : render.spans };
  }
}

/** Adds the line to a template error. */
function locate(error: unknown, line: number): unknown {
  const fault =
    (error as Error).name === 'RangeError'
      ? new TemplateFault('RecursionError', 'maximum recursion depth exceeded')
      : error;
  if (fault instanceof TemplateFault || fault instanceof TemplateLimit) fault.line ||= line;
  return fault;
}

// Converts a program's variables to Python values, as json.loads() would.

/** Maximum nesting of values. */
const DEPTH = 500;

/** Converts variables. Throws TemplateFault for values without a JSON form. */
function convertVariables(variables: Readonly<Record<string, unknown>>): Map<string, Value> {
  const values = new Map<string, Value>();
  for (const [name, variable] of Object.entries(variables)) {
    if (variable !== undefined) values.set(name, toValue(variable, 0));
  }
  return values;
}

function toValue(input: unknown, depth: number): Value {
  switch (typeof input) {
    case 'string':
    case 'boolean':
      return input;
    case 'number':
      return convertNumber(input);
    case 'bigint':
      return normalizeInteger(input);
    case 'undefined':
      return null;
    case 'object':
      break;
    default:
      throw new TemplateFault(
        'TypeError',
        `variables must be JSON values, not ${formatValue(input)}`,
      );
  }
  if (input === null) return null;
  if (depth > DEPTH)
    throw new TemplateFault('RecursionError', `values nested more than ${DEPTH} levels deep`);
  if (Array.isArray(input)) return input.map((item) => toValue(item, depth + 1));
  if (ArrayBuffer.isView(input)) return Array.from(input as Uint8Array, (item) => toValue(item, 0));
  if (input instanceof Date) return input.toISOString();
  const dict = new Dict();
  const entries = input instanceof Map ? input : Object.entries(input);
  for (const [key, item] of entries) {
    if (item !== undefined) dict.set(toValue(key, depth + 1), toValue(item, depth + 1));
  }
  return dict;
}

/**
 * Converts a number to Python's int or float. JavaScript keeps no decimal point, so whole numbers
 * below 1e21 become integers.
 */
function convertNumber(number: number): Value {
  if (Number.isSafeInteger(number)) return number + 0;
  const isWhole = Number.isInteger(number) && Math.abs(number) < 1e21;
  return isWhole ? normalizeInteger(BigInt(number)) : new Float(number);
}
