// Splits the text of one choice into content, reasoning and calls.
import type { AnswerEvent } from '../text/tool-calls/answer-events.js';
import { AnswerReader } from '../text/tool-calls/answer-reader.js';
import type { AnswerPart } from './answer-format.js';
import type { ServedPiece } from './served-engine.js';
import type { CallPlan } from './tools.js';

/** The text of a part. */
export type PartText = Pick<AnswerPart, 'text' | 'reasoning' | 'calls'>;

/** Reads the pieces of one choice by a plan. */
export class ChoiceReader {
  private readonly reader: AnswerReader;
  /** Whether the last event was reasoning. */
  isThinking = false;

  constructor(
    private readonly plan: CallPlan,
    promptEnd: string,
  ) {
    this.reader = new AnswerReader(plan.form, promptEnd);
    this.isThinking = this.reader.startsThinking;
  }

  /** Whether all calls that the request permits are complete. */
  get isDone(): boolean {
    return this.reader.isDone;
  }

  /** Returns the parts of a piece. Each call and each piece of arguments is a separate part. */
  read({ text, finishReason }: Pick<ServedPiece, 'text' | 'finishReason'>): PartText[] {
    const events = this.reader.push(text);
    if (finishReason !== null) events.push(...this.reader.end());
    return events.map((event) => this.partOf(event));
  }

  /**
   * Returns the finish reason of the answer. With calls, "stop" becomes the plan's reason;
   * truncated answers keep theirs.
   */
  finishReason(reason: string | null): string | null {
    return reason === 'stop' && this.reader.calls > 0 ? this.plan.callReason : reason;
  }

  private partOf(event: AnswerEvent): PartText {
    this.isThinking = event.type === 'reasoning';
    switch (event.type) {
      case 'content':
        return { text: event.text };
      case 'reasoning':
        return { text: '', reasoning: event.text };
      case 'call': {
        const { index, name } = event;
        return { text: '', calls: [{ index, id: this.plan.nextId(), name, arguments: '' }] };
      }
      case 'arguments':
        return { text: '', calls: [{ index: event.index, arguments: event.text }] };
    }
  }
}
