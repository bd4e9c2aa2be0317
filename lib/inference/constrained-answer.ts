// Builds the format of a chat answer, which applies only after the reasoning.

import type { Tokenizer } from '../text/index.js';
import { AnswerForms } from '../text/tool-calls/answer-forms.js';
import type { AnswerForm } from '../text/tool-calls/answer-reader.js';
import { type Format, type ReadFormat, readFormat } from './grammar/format.js';

/** How to parse the answers of a request. */
export interface AnswerReading {
  readonly form: AnswerForm;
  readonly promptEnd: string;
}

/** Replaces the format of a request with `messages`. */
interface ConstrainedAnswer {
  format: ReadFormat;
  visibleTokens: readonly number[];
  /** Null if the template has no reasoning. */
  reading: AnswerReading | null;
}

/**
 * Builds a format that allows free reasoning and constrains the text after it. Throws DS_ARGUMENT
 * for an invalid format.
 */
export function constrainAnswer(
  op: string,
  prompt: readonly number[],
  { tokenizer, format }: { tokenizer: Tokenizer; format: Format },
): ConstrainedAnswer {
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
  const answerFormat = forms.answerFormat(prompt, { format, tools: [] });
  const promptEnd = forms.promptEnd(prompt, visibleTokens);
  const reading = forms.reasoning && { form, promptEnd };
  return { format: readFormat(op, answerFormat), visibleTokens, reading };
}
