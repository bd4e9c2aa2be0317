// Events of an answer, in order: content, reasoning, and calls of functions.

/** A part of an answer. Arguments are pieces of JSON text. */
export type AnswerEvent =
  | { type: 'content' | 'reasoning'; text: string }
  | { type: 'call'; index: number; name: string }
  | { type: 'arguments'; index: number; text: string };

/**
 * Collects the events of an answer. It drops whitespace around reasoning and before calls, and all
 * calls beyond `maxCalls`.
 */
export class AnswerOutput {
  private events: AnswerEvent[] = [];
  /** Number of calls that have started. */
  calls = 0;
  /** Number of calls that have ended. */
  endedCalls = 0;
  /** Whitespace that is sent only if text of the same kind follows. */
  private heldSpace = '';
  /** Whether the next text starts a new block, which drops leading whitespace. */
  private isFresh = false;
  private last: 'content' | 'reasoning' | null = null;

  constructor(private readonly maxCalls = Number.POSITIVE_INFINITY) {}

  addContent(text: string): void {
    this.addText('content', text);
  }

  addReasoning(text: string): void {
    if (this.last === null) this.isFresh = true;
    this.addText('reasoning', text);
  }

  beginCall(name: string): void {
    this.heldSpace = '';
    this.isFresh = true;
    this.calls++;
    if (this.isKept) this.events.push({ type: 'call', index: this.calls - 1, name });
  }

  addArguments(text: string): void {
    if (text === '' || !this.isKept) return;
    const index = this.calls - 1;
    const last = this.events.at(-1);
    if (last?.type === 'arguments' && last.index === index) last.text += text;
    else this.events.push({ type: 'arguments', index, text });
  }

  endCall(): void {
    this.endedCalls++;
  }

  /** Whether all calls that the request permits are complete. */
  get isDone(): boolean {
    return this.endedCalls >= this.maxCalls;
  }

  /** Returns the events since the last call. */
  drain(): AnswerEvent[] {
    const { events } = this;
    this.events = [];
    return events;
  }

  /** Ends the text. Sends trailing whitespace, unless it follows reasoning or a call. */
  close(): void {
    if (this.last === 'content') this.push('content', this.heldSpace);
    this.heldSpace = '';
  }

  private get isKept(): boolean {
    return this.calls <= this.maxCalls;
  }

  private addText(type: 'content' | 'reasoning', text: string): void {
    if (this.last !== null && this.last !== type) {
      this.isFresh = true;
      this.heldSpace = '';
    }
    const visible = this.isFresh ? text.trimStart() : text;
    if (visible === '') return;
    this.last = type;
    this.isFresh = false;
    const end = visible.trimEnd().length;
    if (end === 0) {
      this.heldSpace += visible;
      return;
    }
    this.push(type, this.heldSpace + visible.slice(0, end));
    this.heldSpace = visible.slice(end);
  }

  private push(type: 'content' | 'reasoning', text: string): void {
    const last = this.events.at(-1);
    if (text === '') return;
    if (last?.type === type) last.text += text;
    else this.events.push({ type, text });
  }
}
