// Parses reasoning between markers at the start of an answer.
import type { AnswerOutput } from './answer-events.js';
import type { Parser, TextInput } from './text-input.js';

/** Markers around reasoning. */
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

/** Returns whether the prompt ends inside reasoning; its last marker decides. */
export const isOpenIn = (prompt: string, { begin, end }: ReasoningMarkers): boolean =>
  prompt.lastIndexOf(begin) > prompt.lastIndexOf(end);

/** State at the start of an answer. */
interface ReasoningStart {
  markers: ReasoningMarkers;
  isOpen: boolean;
  /** Drops spaces between the reasoning and the text. */
  isTrimmed: boolean;
}

/**
 * Passes reasoning to `output` and the text after it to `pass`. Only a marker at the start counts:
 * later markers are content, such as code.
 */
export function* readReasoning(
  input: TextInput,
  output: AnswerOutput,
  { markers, isOpen, isTrimmed }: ReasoningStart,
  pass: (text: string) => void,
): Parser {
  input.mark();
  yield* input.skipSpaces();
  const hasBegun = yield* input.skip(markers.begin);
  const start = input.unmark();
  if (hasBegun || isOpen) {
    if (!hasBegun) output.addReasoning(start);
    yield* input.passUntil([markers.end], (text) => output.addReasoning(text));
    yield* input.skip(markers.end);
    if (isTrimmed) {
      input.mark();
      yield* input.skipSpaces();
      input.unmark();
    }
  } else pass(start);
  while (yield* input.waitForText()) pass(input.take(input.ready.length));
}
