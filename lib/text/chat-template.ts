// Renders chat templates, and finds the spans of the assistant's text.
import { DsError } from '../errors.js';
import { formatValue } from '../runtime/format-value.js';
import { argumentError, dataError } from '../runtime/input-errors.js';
import { TemplateFault, TemplateLimit } from './template/fault.js';
import type { Marks } from './template/render.js';
import { type RenderResult, Template } from './template/template.js';

/** A message of a conversation. Templates may read other keys too. */
export interface ChatMessage {
  /** "system", "user", "assistant" or another role of the template. */
  role: string;
  /** A text, or a list of parts. */
  content?: unknown;
  [key: string]: unknown;
}

/** Span of the assistant's text, in UTF-16 units. */
export interface Span {
  start: number;
  end: number;
}

/** A rendered conversation. Only renderMarked() sets `spans`. */
export interface RenderedChat {
  text: string;
  spans: readonly Span[] | null;
}

/** Private-use characters that mark the assistant's spans during a second render. */
const MARKS: Marks = { open: '\uF8F0', close: '\uF8F1' };

/** A template of a tokenizer, compiled on first use. */
export class ChatTemplate {
  private template: Template | null = null;

  /** `location` is the name of the template in errors. */
  constructor(
    readonly text: string,
    private readonly location: string,
  ) {}

  /**
   * Renders messages to text. Throws DS_DATA if the template does not compile or refuses the
   * messages, and DS_ARGUMENT if `messages` is not a list of messages.
   */
  render(messages: readonly ChatMessage[], variables: Record<string, unknown>): RenderedChat {
    requireMessages(messages, this.location);
    return { text: this.runTemplate({ ...variables, messages }).text, spans: null };
  }

  /**
   * Renders messages, and finds the assistant's spans. Throws as render() does, and DS_DATA without
   * {% generation %}.
   */
  renderMarked(messages: readonly ChatMessage[], variables: Record<string, unknown>): RenderedChat {
    requireMessages(messages, this.location);
    const all = { ...variables, messages };
    const { text, spans } = this.runTemplate(all);
    if (!this.text.match(/\{%[-+]?\s*generation\s*[-+]?%\}/)) {
      const expected = 'a chat template that marks the text of the assistant with {% generation %}';
      const hint = 'Add {% generation %} and {% endgeneration %} to chat_template.jinja.';
      throw dataError(this.location, expected, 'a template without these marks', hint);
    }
    if (spans !== null) return { text, spans };
    // A macro or a filter captured the text, so render again with marks to find its final position.
    const withMarks = this.runTemplate(all, MARKS).text;
    const markedSpans = findSpans(withMarks);
    const isSame = withMarks.replace(/[\uF8F0\uF8F1]/g, '') === text;
    if (markedSpans !== null && isSame) return { text, spans: markedSpans };
    const expected = 'marks of {% generation %} that do not change the text';
    const hint =
      'Remove filters and tests on the text of {% generation %}, and U+F8F0 and U+F8F1 from messages.';
    throw dataError(this.location, expected, 'a text that changes with the marks', hint);
  }

  private runTemplate(
    variables: Record<string, unknown>,
    marks: Marks | null = null,
  ): RenderResult {
    this.template ??= this.compile();
    try {
      return this.template.render(variables, marks);
    } catch (cause) {
      throw this.toDataError(cause);
    }
  }

  private compile(): Template {
    try {
      return new Template(this.text);
    } catch (cause) {
      if (!(cause instanceof TemplateFault)) throw cause;
      throw dataError(this.location, 'a Jinja template', withLine(cause.message, cause.line));
    }
  }

  private toDataError(cause: unknown): unknown {
    if (cause instanceof TemplateLimit) {
      const expected = `a template that stays within ${cause.bound}`;
      const hint = 'Shorten the loops, macros and products in the template.';
      return dataError(this.location, expected, withLine(cause.got, cause.line), hint);
    }
    if (!(cause instanceof TemplateFault)) return cause;
    const { kind, message, line } = cause;
    // The message of raise_exception() comes from the template.
    const words = kind === 'TemplateError' ? message : `${kind}: ${message}`;
    const hint = 'Check the order of roles, and pass all variables that the template reads.';
    return new DsError({
      code: 'DS_DATA',
      op: this.location,
      expected: 'messages that the template accepts',
      got: withLine(`its error: ${words}`, line),
      hint,
      cause,
    });
  }
}

const withLine = (text: string, line: number): string =>
  line > 0 ? `${text} (line ${line})` : text;

/**
 * Returns the spans between marks, as positions in the text without marks; null if marks are not
 * paired.
 */
function findSpans(text: string): Span[] | null {
  const spans: Span[] = [];
  let start = -1;
  let length = 0;
  for (const letter of text) {
    if (letter === MARKS.open) {
      if (start >= 0) return null;
      start = length;
    } else if (letter === MARKS.close) {
      if (start < 0) return null;
      spans.push({ start, end: length });
      start = -1;
    } else length += letter.length;
  }
  return start < 0 ? spans : null;
}

function requireMessages(messages: unknown, op: string): void {
  const hint = 'Pass a list such as [{ role: "user", content: "Hello" }].';
  const expected = 'a list of messages with a role';
  const fail = (got: string): DsError => argumentError(op, expected, got, hint);
  if (!Array.isArray(messages) || messages.length === 0) throw fail(formatValue(messages));
  const odd = messages.findIndex((message) => typeof message?.role !== 'string');
  if (odd >= 0) throw fail(`${formatValue(messages[odd])} as message ${odd}`);
}
