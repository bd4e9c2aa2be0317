// A chat template as transformers evaluates it: jinja2 with Python's values, in a sandbox.
import { resetMeter, TemplateFault, TemplateLimit } from './fault.js';
import { given } from './given.js';
import { parse } from './parser.js';
import { type Marks, Render, type Span } from './render.js';
import { compileTemplate, type Program } from './statements.js';

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
      throw located(error, 0);
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
      throw located(error, render.line);
    }
    return { text: render.out, spans: render.hasCapturedSpan ? null : render.spans };
  }
}

/** Notes where the template failed. */
function located(error: unknown, line: number): unknown {
  const fault =
    (error as Error).name === 'RangeError'
      ? new TemplateFault('RecursionError', 'maximum recursion depth exceeded')
      : error;
  if (fault instanceof TemplateFault || fault instanceof TemplateLimit) fault.line ||= line;
  return fault;
}
