// Reasoning between markers at the start of an answer.
import type { AnswerOutput } from './answer-events.js';
import type { Reading, TextInput } from './text-input.js';

/** The markers around reasoning. */
export interface ReasoningMarkers {
  begin: string;
  end: string;
}

export const REASONING = {
  think: { begin: '<think>', end: '</think>' },
  mistral: { begin: '[THINK]', end: '[/THINK]' },
  gemma: { begin: '<|channel>thought', end: '<channel|>' },
} as const satisfies Record<string, ReasoningMarkers>;

/** Names of the forms of reasoning. */
export type ReasoningName = keyof typeof REASONING;

/** Whether the prompt ends inside of reasoning: its last marker decides. */
export const isOpenIn = (prompt: string, { begin, end }: ReasoningMarkers): boolean =>
  prompt.lastIndexOf(begin) > prompt.lastIndexOf(end);

/** How an answer begins. */
interface ReasoningStart {
  markers: ReasoningMarkers;
  isOpen: boolean;
  /** Drop spaces between the reasoning and the text. */
  isTrimmed: boolean;
}

/**
 * Sends reasoning to `output` and the text after it to `pass`. A marker counts only at the start:
 * later ones are content, such as code.
 */
export function* readReasoning(
  input: TextInput,
  output: AnswerOutput,
  { markers, isOpen, isTrimmed }: ReasoningStart,
  pass: (text: string) => void,
): Reading {
  input.mark();
  yield* input.spaces();
  const hasBegun = yield* input.skip(markers.begin);
  const start = input.unmark();
  if (hasBegun || isOpen) {
    if (!hasBegun) output.reasoning(start);
    yield* input.until([markers.end], (text) => output.reasoning(text));
    yield* input.skip(markers.end);
    if (isTrimmed) {
      input.mark();
      yield* input.spaces();
      input.unmark();
    }
  } else pass(start);
  while (yield* input.some()) pass(input.take(input.ready.length));
}
