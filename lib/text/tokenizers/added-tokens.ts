// Finds added tokens in a text before it is encoded. Source: the Rust crate tokenizers.
import { required } from '../../runtime/required.js';
import { spaceEnd, spaceStart, WORD } from './characters.js';
import { Trie } from './trie.js';

/** An entry of "added_tokens". */
export interface AddedToken {
  readonly content: string;
  readonly id: number;
  /** Whether the token must not be inside a word. */
  readonly single_word: boolean;
  /** Includes whitespace before the token. */
  readonly lstrip: boolean;
  /** Includes whitespace after the token. */
  readonly rstrip: boolean;
  /** Whether to search in the normalized text. */
  readonly normalized: boolean;
  readonly special: boolean;
}

/** A section of a text: an added token, or text without one. */
interface Section {
  readonly start: number;
  readonly end: number;
  readonly token: AddedToken | null;
}

const WORD_START = new RegExp(`^[${WORD}]`, 'u');
const WORD_END = new RegExp(`[${WORD}]$`, 'u');

/** Finds added tokens by spelling; at each position, the longest. */
export class AddedTokens {
  private readonly trie: Trie;
  private readonly firsts: ReadonlySet<number>;
  /** A token that is empty after normalization. */
  private readonly empty: AddedToken | null;

  /** `spellings` are the tokens' texts, normalized if the search is in a normalized text. */
  constructor(
    private readonly tokens: readonly AddedToken[],
    spellings: readonly string[],
  ) {
    // Of two tokens with one spelling, the first is found; the crate takes a random one.
    const numbers = new Map<string, number>();
    for (const [i, text] of spellings.entries()) if (!numbers.has(text)) numbers.set(text, i);
    this.trie = new Trie(numbers);
    this.empty = tokens.find(({ content }, i) => content !== '' && spellings[i] === '') ?? null;
    this.firsts = new Set(spellings.map((text) => text.charCodeAt(0)));
  }

  /** Splits a text into sections, in order. */
  split(text: string): Section[] {
    const sections: Section[] = [];
    let [done, last] = [0, -1];
    for (let at = 0; at < text.length + Number(this.empty !== null); ) {
      const match = this.findLongest(text, at);
      // An empty spelling matches at every character, except directly after another token.
      if (match === null || (match.end === at && at === last)) {
        at += characterWidth(text, at);
        continue;
      }
      const { token, end } = match;
      const [start, next] = [at, end];
      at = last = next;
      if (token.single_word && isInWord(text, start, next)) continue;
      const from = token.lstrip ? Math.max(spaceStart(text.slice(0, start)), done) : start;
      const to = token.rstrip ? spaceEnd(text, next) : next;
      if (done < from) sections.push({ start: done, end: from, token: null });
      // The whitespace of the previous token may leave nothing.
      if (from < to) sections.push({ start: from, end: to, token });
      done = to;
    }
    if (done < text.length) sections.push({ start: done, end: text.length, token: null });
    return sections;
  }

  private findLongest(text: string, at: number): { token: AddedToken; end: number } | null {
    let longest: { token: AddedToken; end: number } | null = this.empty && {
      token: this.empty,
      end: at,
    };
    if (!this.firsts.has(text.charCodeAt(at))) return longest;
    this.trie.prefixes(text, at, (end, number) => {
      longest = { token: required(this.tokens[number]), end };
    });
    return longest;
  }
}

/** Returns the UTF-16 units of the character at a position. */
const characterWidth = (text: string, at: number): number =>
  (text.codePointAt(at) ?? 0) > 0xffff ? 2 : 1;

/** Returns whether the character before or after a range is part of a word. */
function isInWord(text: string, start: number, end: number): boolean {
  const before = text.slice(Math.max(0, start - 2), start);
  return WORD_END.test(before) || WORD_START.test(text.slice(end, end + 2));
}
