// The forms of calls and reasoning in a model's answers, detected from its chat template.
import { keysOf } from '../../runtime/typed-keys.js';
import type { Tokenizer } from '../tokenizer.js';
import type { AnswerForm } from './answer-reader.js';
import type { CallGrammar } from './call-grammars.js';
import type { FunctionTool } from './call-schema.js';
import { CALL_FAMILIES, type CallFamily, detectFamily, detectReasoning } from './families.js';
import { isOpenIn, REASONING, type ReasoningMarkers } from './reasoning.js';

/** Values of `--tool-parser`. */
export const TOOL_PARSERS = ['auto', 'none', ...keysOf(CALL_FAMILIES)] as const;
/** Values of `--reasoning-parser`. */
export const REASONING_PARSERS = ['auto', 'none', ...keysOf(REASONING)] as const;

/** Names of the parsers for answers. */
export interface ParserNames {
  toolParser: (typeof TOOL_PARSERS)[number];
  reasoningParser: (typeof REASONING_PARSERS)[number];
}

/** Constraints of an answer after its reasoning. */
interface AnswerBounds<Format> {
  /** The format of the text; null for any text. */
  format: Format | null;
  tools: readonly FunctionTool[];
  /** Permits at most one call. */
  isSingle?: boolean;
}

/** A format with parts of an answer; see AnswerFormat of lib/inference/grammar/format.ts. */
type PartedFormat<Format> = {
  readonly '~answer': {
    readonly reasoning: { readonly begin: string | null; readonly end: string } | null;
    readonly calls: (CallGrammar & { readonly isSingle: boolean }) | null;
    readonly format: Format | null;
  };
};

/** The forms of a model's answers. */
export class AnswerForms {
  /** Null: calls stay in the text. */
  readonly family: CallFamily | null;
  /** Null: reasoning stays in the text. */
  readonly reasoning: ReasoningMarkers | null;

  /** `template` is the text of the chat template, in which "auto" detects the forms. */
  constructor(
    private readonly tokenizer: Tokenizer | null,
    template: string,
    { toolParser, reasoningParser }: ParserNames,
  ) {
    // A model with this token in its vocabulary was trained to write it.
    const usual = tokenizer && tokenizer.tokenToId('<tool_call>') !== null ? 'hermes' : null;
    const family = toolParser === 'auto' ? (detectFamily(template) ?? usual) : toolParser;
    this.family = family === null || family === 'none' ? null : CALL_FAMILIES[family];
    const name = reasoningParser === 'auto' ? detectReasoning(template) : reasoningParser;
    this.reasoning = name === null || name === 'none' ? null : REASONING[name];
  }

  /** Returns the special tokens that must appear in the text so that it can be parsed. */
  visibleTokens({ family, reasoning }: Pick<AnswerForm, 'family' | 'reasoning'>): number[] {
    const { tokenizer } = this;
    if (!tokenizer) return [];
    const markers = [reasoning?.begin ?? [], reasoning?.end ?? []].flat();
    // The marker of Gemma 4 is a token and a word.
    const tokens = markers.map((marker) => /^<\|\w+>/.exec(marker)?.[0] ?? marker);
    return [...(family?.tokens ?? []), ...tokens].flatMap((token) => {
      const id = tokenizer.tokenToId(token);
      return id !== null && tokenizer.specialIds.has(id) ? [id] : [];
    });
  }

  /**
   * Returns tokens to append to the prompt of an answer with a format. They close open reasoning.
   * With `isCall`, they also start the call.
   */
  opening(prompt: readonly number[], isCall: boolean): number[] {
    const { tokenizer, family, reasoning } = this;
    if (!tokenizer) return [];
    const end = this.promptEnd(prompt, this.visibleTokens({ family, reasoning }));
    const isOpen = reasoning !== null && isOpenIn(end, reasoning);
    const start = isCall || family?.isWhole ? (family?.jsonStart ?? '') : '';
    const text = `${isOpen ? `\n${reasoning.end}\n\n` : ''}${start}`;
    return text === '' ? [] : [...tokenizer.encode(text, { addSpecialTokens: false })];
  }

  /**
   * Returns the format of a whole answer: reasoning is free, `format` applies to the text after it,
   * and calls match the schemas of strict functions. With a format, the answer has calls or text.
   * Null: any text.
   */
  answerFormat<Format>(
    prompt: readonly number[],
    { format, tools, isSingle = false }: AnswerBounds<Format>,
  ): Format | PartedFormat<Format> | null {
    const { family, tokenizer } = this;
    const isHeld = format !== null || tools.some((tool) => tool.function.strict);
    const constrainedTools = tools.map((tool) =>
      tool.function.strict ? tool : allowAnyArguments(tool),
    );
    const hasToken = (token: string): boolean => (tokenizer?.tokenToId(token) ?? null) !== null;
    const callForms =
      isHeld && tools.length > 0 ? family?.constrain?.(constrainedTools, hasToken) : undefined;
    // In a form of messages, reasoning is one of the messages.
    const reasoning = isHeld && !family?.isWhole ? this.findReasoning(prompt) : null;
    if (!callForms && (format === null || !reasoning)) return format;
    const calls = callForms ? { ...callForms, isSingle } : null;
    return { '~answer': { reasoning, calls, format } };
  }

  /** Returns the reasoning that may follow a prompt; null if the prompt has closed it. */
  private findReasoning(prompt: readonly number[]): { begin: string | null; end: string } | null {
    const { family, reasoning } = this;
    if (!reasoning) return null;
    const { begin, end } = reasoning;
    const promptText = this.promptEnd(prompt, this.visibleTokens({ family, reasoning }));
    if (isOpenIn(promptText, reasoning)) return { begin: null, end };
    return promptText.includes(end) ? null : { begin, end };
  }

  /**
   * Returns the end of a prompt after the last special token that is not a marker. This token
   * starts the header of the answer, which users cannot write.
   */
  promptEnd(prompt: readonly number[], visible: readonly number[]): string {
    const { tokenizer } = this;
    if (!tokenizer) return '';
    const isHeader = (id: number): boolean => tokenizer.specialIds.has(id) && !visible.includes(id);
    const endTokens = prompt.slice(prompt.findLastIndex(isHeader) + 1);
    return tokenizer.decode(endTokens.filter((id) => tokenizer.hasToken(id)));
  }
}

/** Allows any object as the arguments of a function that is not strict. */
const allowAnyArguments = ({ type, function: { name } }: FunctionTool): FunctionTool => ({
  type,
  function: { name },
});
