// The forms of calls and reasoning of a model, by its chat template.
import { keysOf } from '../../runtime/typed-keys.js';
import type { Tokenizer } from '../tokenizer.js';
import type { AnswerForm } from './answer-reader.js';
import type { FunctionTool } from './call-schema.js';
import {
  CALL_FAMILIES,
  type CallFamily,
  type CallFamilyName,
  familyOf,
  reasoningOf,
} from './families.js';
import type { HeldCalls } from './held-calls.js';
import { isOpenIn, REASONING, type ReasoningMarkers, type ReasoningName } from './reasoning.js';

/** Names that `--tool-parser` takes. */
export const TOOL_PARSERS = ['auto', 'none', ...keysOf(CALL_FAMILIES)] as const;
/** Names that `--reasoning-parser` takes. */
export const REASONING_PARSERS = ['auto', 'none', ...keysOf(REASONING)] as const;

/** Names of the parsers that read answers. */
export interface ParserNames {
  toolParser: 'auto' | 'none' | CallFamilyName;
  reasoningParser: 'auto' | 'none' | ReasoningName;
}

/** What an answer may be, apart from its reasoning. */
interface AnswerBounds<Format> {
  /** The format of the text; null for any text. */
  format: Format | null;
  tools: readonly FunctionTool[];
  /** At most one call. */
  isSingle?: boolean;
}

/** A format of the parts of an answer; see the formats of the inference engine. */
type PartedFormat<Format> = {
  readonly '~answer': {
    readonly reasoning: { readonly begin: string | null; readonly end: string } | null;
    readonly calls: (HeldCalls & { readonly isSingle: boolean }) | null;
    readonly format: Format | null;
  };
};

/** How answers of a model are read. */
export class AnswerForms {
  /** Null: calls stay text. */
  readonly family: CallFamily | null;
  /** Null: reasoning stays text. */
  readonly reasoning: ReasoningMarkers | null;

  /** `template`: the text of the chat template; "auto" finds the forms in it. */
  constructor(
    private readonly tokenizer: Tokenizer | null,
    template: string,
    { toolParser, reasoningParser }: ParserNames,
  ) {
    // A vocabulary with this token is of a model that was trained with it.
    const usual = tokenizer && tokenizer.tokenToId('<tool_call>') !== null ? 'hermes' : null;
    const family = toolParser === 'auto' ? (familyOf(template) ?? usual) : toolParser;
    this.family = family === null || family === 'none' ? null : CALL_FAMILIES[family];
    const name = reasoningParser === 'auto' ? reasoningOf(template) : reasoningParser;
    this.reasoning = name === null || name === 'none' ? null : REASONING[name];
  }

  /** Special tokens that the text of an answer must show to be read. */
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
   * Returns tokens to add to a prompt before an answer with a format. They close open reasoning. If
   * `isCall`, they also begin the call.
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
   * Returns the format of a whole answer: reasoning stays free, `format` holds for the text after
   * it, and calls match the schemas of strict functions. With a format, calls are an alternative to
   * its text. Null: any text.
   */
  answerFormat<Format>(
    prompt: readonly number[],
    { format, tools, isSingle = false }: AnswerBounds<Format>,
  ): Format | PartedFormat<Format> | null {
    const { family, tokenizer } = this;
    const isHeld = format !== null || tools.some((tool) => tool.function.strict);
    const ownTools = tools.map((tool) => (tool.function.strict ? tool : open(tool)));
    const hasToken = (token: string): boolean => (tokenizer?.tokenToId(token) ?? null) !== null;
    const held = isHeld && tools.length > 0 ? family?.hold?.(ownTools, hasToken) : undefined;
    // In a form of messages, reasoning is one of them.
    const reasoning = isHeld && !family?.isWhole ? this.reasoningAfter(prompt) : null;
    if (!held && (format === null || !reasoning)) return format;
    const calls = held ? { ...held, isSingle } : null;
    return { '~answer': { reasoning, calls, format } };
  }

  /** The reasoning that may follow a prompt; null if the prompt has closed it. */
  private reasoningAfter(prompt: readonly number[]): { begin: string | null; end: string } | null {
    const { family, reasoning } = this;
    if (!reasoning) return null;
    const { begin, end } = reasoning;
    const known = this.promptEnd(prompt, this.visibleTokens({ family, reasoning }));
    if (isOpenIn(known, reasoning)) return { begin: null, end };
    return known.includes(end) ? null : { begin, end };
  }

  /**
   * The end of a prompt, from its last special token that is no marker: the header of the answer,
   * which users do not write.
   */
  promptEnd(prompt: readonly number[], visible: readonly number[]): string {
    const { tokenizer } = this;
    if (!tokenizer) return '';
    const isHeader = (id: number): boolean => tokenizer.specialIds.has(id) && !visible.includes(id);
    const known = prompt.slice(prompt.findLastIndex(isHeader) + 1);
    return tokenizer.decode(known.filter((id) => tokenizer.hasToken(id)));
  }
}

/** The arguments of a function that is not strict are any object. */
const open = ({ type, function: { name } }: FunctionTool): FunctionTool => ({
  type,
  function: { name },
});
