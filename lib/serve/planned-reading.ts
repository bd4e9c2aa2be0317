// Reads the pieces of one choice by a plan: parts with content, reasoning and calls.
import type { AnswerEvent } from '../text/tool-calls/answer-events.js';
import { AnswerReader } from '../text/tool-calls/answer-reader.js';
import type { AnswerPart } from './answer-format.js';
import type { ServedPiece } from './served-engine.js';
import type { CallPlan } from './tools.js';

/** The words of a part. */
export type PartText = Pick<AnswerPart, 'text' | 'reasoning' | 'calls'>;

/** Reads the text of one choice. */
export class PlannedReading {
  private readonly reader: AnswerReader;
  /** The last event was reasoning. */
  isThinking = false;

  constructor(
    private readonly plan: CallPlan,
    promptEnd: string,
  ) {
    this.reader = new AnswerReader(plan.form, promptEnd);
    this.isThinking = this.reader.startsThinking;
  }

  /** The calls that the request permits are complete. */
  get isDone(): boolean {
    return this.reader.isDone;
  }

  /** The parts of a piece. Each call and each piece of arguments is a part of its own. */
  parts({ text, finishReason }: Pick<ServedPiece, 'text' | 'finishReason'>): PartText[] {
    const events = this.reader.push(text);
    if (finishReason !== null) events.push(...this.reader.end());
    return events.map((event) => this.said(event));
  }

  /** The finish reason of an answer with calls. A truncated answer keeps its reason. */
  reason(reason: string | null): string | null {
    return reason === 'stop' && this.reader.calls > 0 ? this.plan.callReason : reason;
  }

  private said(event: AnswerEvent): PartText {
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
