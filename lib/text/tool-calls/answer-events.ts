// The parts of an answer, in their order: content, reasoning, and calls of functions.

/** A part of an answer. Arguments are JSON text, in pieces. */
export type AnswerEvent =
  | { type: 'content' | 'reasoning'; text: string }
  | { type: 'call'; index: number; name: string }
  | { type: 'arguments'; index: number; text: string };

/**
 * Collects the events of an answer. It drops the white space around reasoning and before calls, and
 * all calls beyond `maxCalls`.
 */
export class AnswerOutput {
  private events: AnswerEvent[] = [];
  /** Calls that have begun. */
  calls = 0;
  /** Calls that have ended. */
  ended = 0;
  /** White space that counts only if text of the same kind follows. */
  private held = '';
  /** The next text begins a new block, which has no leading white space. */
  private isFresh = false;
  private last: 'content' | 'reasoning' | null = null;

  constructor(private readonly maxCalls = Number.POSITIVE_INFINITY) {}

  content(text: string): void {
    this.say('content', text);
  }

  reasoning(text: string): void {
    if (this.last === null) this.isFresh = true;
    this.say('reasoning', text);
  }

  begin(name: string): void {
    this.held = '';
    this.isFresh = true;
    this.calls++;
    if (this.isKept) this.events.push({ type: 'call', index: this.calls - 1, name });
  }

  arguments(text: string): void {
    if (text === '' || !this.isKept) return;
    const index = this.calls - 1;
    const last = this.events.at(-1);
    if (last?.type === 'arguments' && last.index === index) last.text += text;
    else this.events.push({ type: 'arguments', index, text });
  }

  end(): void {
    this.ended++;
  }

  /** All calls that the request permits are complete. */
  get isDone(): boolean {
    return this.ended >= this.maxCalls;
  }

  /** Returns the events since the last call. */
  drain(): AnswerEvent[] {
    const { events } = this;
    this.events = [];
    return events;
  }

  /** The text is over: white space at its end counts, unless it follows reasoning or a call. */
  close(): void {
    if (this.last === 'content') this.push('content', this.held);
    this.held = '';
  }

  private get isKept(): boolean {
    return this.calls <= this.maxCalls;
  }

  private say(type: 'content' | 'reasoning', text: string): void {
    if (this.last !== null && this.last !== type) {
      this.isFresh = true;
      this.held = '';
    }
    const visible = this.isFresh ? text.trimStart() : text;
    if (visible === '') return;
    this.last = type;
    this.isFresh = false;
    const end = visible.trimEnd().length;
    if (end === 0) {
      this.held += visible;
      return;
    }
    this.push(type, this.held + visible.slice(0, end));
    this.held = visible.slice(end);
  }

  private push(type: 'content' | 'reasoning', text: string): void {
    const last = this.events.at(-1);
    if (text === '') return;
    if (last?.type === type) last.text += text;
    else this.events.push({ type, text });
  }
}
