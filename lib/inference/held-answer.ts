// The format of a chat's answer: it holds after the reasoning.

import type { Tokenizer } from '../text/index.js';
import { AnswerForms } from '../text/tool-calls/answer-forms.js';
import type { AnswerForm } from '../text/tool-calls/answer-reader.js';
import { type Format, type ReadFormat, readFormat } from './grammar/format.js';

/** How the answers of a request are read. */
export interface AnswerReading {
  readonly form: AnswerForm;
  readonly promptEnd: string;
}

/** What a request with `messages` and `format` gets in place of its format. */
export interface HeldAnswer {
  format: ReadFormat;
  visibleTokens: readonly number[];
  /** Null: the template has no reasoning. */
  reading: AnswerReading | null;
}

/** Reasoning stays free, and the format holds for the text after it. Throws DS_ARGUMENT. */
export function heldAnswer(
  op: string,
  prompt: readonly number[],
  { tokenizer, format }: { tokenizer: Tokenizer; format: Format },
): HeldAnswer {
  const template = tokenizer.templateText('default') ?? '';
  const parsers = { toolParser: 'none', reasoningParser: 'auto' } as const;
  const forms = new AnswerForms(tokenizer, template, parsers);
  const form: AnswerForm = {
    family: null,
    reasoning: forms.reasoning,
    tools: [],
    isTrimmed: true,
  };
  const visibleTokens = forms.visibleTokens(form);
  const whole = forms.answerFormat(prompt, { format, tools: [] });
  const promptEnd = forms.promptEnd(prompt, visibleTokens);
  const reading = forms.reasoning && { form, promptEnd };
  return { format: readFormat(op, whole), visibleTokens, reading };
}
