// The forms of calls and reasoning of a model, by its chat template.
import type { Tokenizer } from '../tokenizer.js';
import type { AnswerForm } from './answer-reader.js';
import {
  CALL_FAMILIES,
  type CallFamily,
  type CallFamilyName,
  familyOf,
  reasoningOf,
} from './families.js';
import { isOpenIn, REASONING, type ReasoningMarkers, type ReasoningName } from './reasoning.js';

/** Names that `--tool-parser` takes. */
export const TOOL_PARSERS = ['auto', 'none', ...keysOf(CALL_FAMILIES)] as const;
/** Names that `--reasoning-parser` takes. */
export const REASONING_PARSERS = ['auto', 'none', ...keysOf(REASONING)] as const;

/** Which parsers read answers. */
export interface ParserNames {
  toolParser: 'auto' | 'none' | CallFamilyName;
  reasoningParser: 'auto' | 'none' | ReasoningName;
}

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
    const tokens = markers.map((one) => /^<\|\w+>/.exec(one)?.[0] ?? one);
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

function keysOf<Key extends string>(table: Readonly<Record<Key, unknown>>): Key[] {
  return Object.keys(table) as Key[];
}
