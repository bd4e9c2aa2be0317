// Chat templates: messages to text, and which parts of it the assistant says.
import { DsError } from '../errors.js';
import { phrase } from '../runtime/phrase.js';
import { type BackendTemplate, backendTemplate } from './backend.js';
import { dataError } from './tokenizer-folder.js';

/** A message of a conversation; templates may read more of it than these. */
export interface ChatMessage {
  role: string;
  content?: unknown;
  [key: string]: unknown;
}

/**
 * A rendered conversation; `spoken` are the parts of `text` from the assistant, null where the
 * template does not mark them.
 */
export interface RenderedChat {
  text: string;
  spoken: { start: number; end: number }[] | null;
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

  /** Whether it says with {% generation %} what the assistant says. */
  get isMarked(): boolean {
    return this.text.search(GENERATION) >= 0;
  }

  /**
   * Throws DS_DATA when the template cannot be read, refuses the messages (its words are in the
   * error) or cannot be marked; DS_ARGUMENT for what are no messages.
   */
  render(messages: readonly ChatMessage[], variables: Record<string, unknown>): RenderedChat {
    requireMessages(messages, this.place);
    this.plain ??= this.compile(this.text);
    const text = this.run(this.plain, { ...variables, messages });
    if (!this.isMarked) return { text, spoken: null };
    this.marked ??= this.compile(this.text.replace(GENERATION, markBlock));
    const withMarks = this.run(this.marked, { ...variables, messages });
    const spoken = spokenOf(withMarks);
    if (spoken !== null && withMarks.replace(/[\uF8F0\uF8F1]/g, '') === text)
      return { text, spoken };
    const expected = 'marks of {% generation %} that leave the text as it is';
    const hint =
      'The template trims or tests what it has written, or messages hold U+F8F0 or U+F8F1.';
    throw dataError(this.place, expected, 'another text', hint);
  }

  private compile(text: string): BackendTemplate {
    try {
      return backendTemplate(text);
    } catch (cause) {
      throw dataError(this.place, 'a Jinja template', (cause as Error).message, '');
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
function spokenOf(text: string): { start: number; end: number }[] | null {
  const spoken: { start: number; end: number }[] = [];
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
  if (!Array.isArray(messages) || messages.length === 0) throw fail(phrase(messages));
  const odd = messages.findIndex((message) => typeof message?.role !== 'string');
  if (odd >= 0) throw fail(`${phrase(messages[odd])} as message ${odd}`);
}
