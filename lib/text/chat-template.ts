// Chat templates: messages to text, and which parts of it the assistant says.
import { DsError } from '../errors.js';
import { formatValue } from '../runtime/format-value.js';
import { dataError } from '../runtime/refused.js';
import { type BackendTemplate, backendTemplate } from './backend.js';

/** A message of a conversation; templates may read more of it than these. */
export interface ChatMessage {
  /** "system", "user", "assistant" or what else the template knows. */
  role: string;
  /** What is said. */
  content?: unknown;
  [key: string]: unknown;
}

/** A part of a text that the assistant says, in UTF-16 units. */
export interface Spoken {
  start: number;
  end: number;
}

/** A rendered conversation; `spoken` is null where nobody asked for it. */
export interface RenderedChat {
  text: string;
  spoken: readonly Spoken[] | null;
}

/**
 * Private characters that stand for the borders of what the assistant says, while it is rendered.
 */
const OPEN = '\uF8F0';
const CLOSE = '\uF8F1';
const GENERATION = /\{%([-+]?)\s*(end)?generation\s*([-+]?)%\}/g;

/** A template of a tokenizer; compiled when it is first used. */
export class ChatTemplate {
  private plain: BackendTemplate | null = null;
  private marked: BackendTemplate | null = null;

  /** `place` names it in errors. */
  constructor(
    readonly text: string,
    private readonly place: string,
  ) {}

  /**
   * Throws DS_DATA when the template cannot be read, or refuses the messages (its words are in the
   * error); DS_ARGUMENT for what are no messages.
   */
  render(messages: readonly ChatMessage[], variables: Record<string, unknown>): RenderedChat {
    requireMessages(messages, this.place);
    this.plain ??= this.compile(this.text);
    return { text: this.run(this.plain, { ...variables, messages }), spoken: null };
  }

  /**
   * The same with what the assistant says. Throws DS_DATA also where the template does not mark it.
   */
  renderMarked(messages: readonly ChatMessage[], variables: Record<string, unknown>): RenderedChat {
    const { text } = this.render(messages, variables);
    if (this.text.search(GENERATION) < 0) {
      const expected = 'a chat template that marks with {% generation %} what the assistant says';
      const hint = 'Mark it in chat_template.jinja; transformers reads the marks as well.';
      throw dataError(this.place, expected, 'one that does not', hint);
    }
    this.marked ??= this.compile(this.text.replace(GENERATION, markBlock));
    const withMarks = this.run(this.marked, { ...variables, messages });
    const spoken = spokenOf(withMarks);
    const isSame = withMarks.replace(/[\uF8F0\uF8F1]/g, '') === text;
    if (spoken !== null && isSame) return { text, spoken };
    const expected = 'marks of {% generation %} that leave the text as it is';
    const hint =
      'The template trims or tests what it has written, or messages hold U+F8F0 or U+F8F1.';
    throw dataError(this.place, expected, 'another text', hint);
  }

  private compile(text: string): BackendTemplate {
    try {
      return backendTemplate(text);
    } catch (cause) {
      throw dataError(this.place, 'a Jinja template', (cause as Error).message);
    }
  }

  private run(template: BackendTemplate, variables: Record<string, unknown>): string {
    try {
      return template.render(variables);
    } catch (cause) {
      const { message } = cause as Error;
      const hint =
        'Templates require certain roles in a certain order, and the variables that they name.';
      throw new DsError({
        code: 'DS_DATA',
        op: this.place,
        expected: 'messages that the template takes',
        got: `its error: ${message}`,
        hint,
        cause,
      });
    }
  }
}

/** A block of the same trimming that writes a mark: what is around it is rendered alike. */
function markBlock(_: string, left: string, end: string | undefined, right: string): string {
  return `{%${left} if true %}${end ? CLOSE : OPEN}{% endif ${right}%}`;
}

/** Where the marks lie, counted in the text without them; null when they are no pairs. */
function spokenOf(text: string): Spoken[] | null {
  const spoken: Spoken[] = [];
  let start = -1;
  let length = 0;
  for (const letter of text) {
    if (letter === OPEN) {
      if (start >= 0) return null;
      start = length;
    } else if (letter === CLOSE) {
      if (start < 0) return null;
      spoken.push({ start, end: length });
      start = -1;
    } else length += letter.length;
  }
  return start < 0 ? spoken : null;
}

function requireMessages(messages: unknown, op: string): void {
  const hint = 'A conversation is a list such as [{ role: "user", content: "Hello" }].';
  const expected = 'a list of messages with a role';
  const fail = (got: string): DsError =>
    new DsError({ code: 'DS_ARGUMENT', op, expected, got, hint });
  if (!Array.isArray(messages) || messages.length === 0) throw fail(formatValue(messages));
  const odd = messages.findIndex((message) => typeof message?.role !== 'string');
  if (odd >= 0) throw fail(`${formatValue(messages[odd])} as message ${odd}`);
}
