// Added tokens: found in a text before it is encoded. Source: the Rust crate tokenizers.
import { required } from '../../runtime/required.js';
import { spaceEnd, spaceStart, WORD } from './characters.js';
import { Trie } from './trie.js';

/** A token of "added_tokens". */
export interface AddedToken {
  readonly content: string;
  readonly id: number;
  /** Whether the token is not found inside a word. */
  readonly single_word: boolean;
  /** Takes the white space before it. */
  readonly lstrip: boolean;
  /** Takes the white space behind it. */
  readonly rstrip: boolean;
  /** Found in the normalized text. */
  readonly normalized: boolean;
  readonly special: boolean;
}

/** A part of a text: a token, or text without one. */
interface Section {
  readonly start: number;
  readonly end: number;
  readonly token: AddedToken | null;
}

const WORD_START = new RegExp(`^[${WORD}]`, 'u');
const WORD_END = new RegExp(`[${WORD}]$`, 'u');

/** Finds some added tokens by their spelling, the longest at each place. */
export class AddedTokens {
  private readonly trie: Trie;
  private readonly firsts: ReadonlySet<number>;
  /** A token that the normalizer leaves nothing of. */
  private readonly empty: AddedToken | null;

  /** `spellings` are the tokens' texts, normalized where the search is in a normalized text. */
  constructor(
    private readonly tokens: readonly AddedToken[],
    spellings: readonly string[],
  ) {
    // Of two tokens with one spelling the first one is found; the crate takes a random one.
    const numbers = new Map<string, number>();
    for (const [i, text] of spellings.entries()) if (!numbers.has(text)) numbers.set(text, i);
    this.trie = new Trie(numbers);
    this.empty = tokens.find(({ content }, i) => content !== '' && spellings[i] === '') ?? null;
    this.firsts = new Set(spellings.map((text) => text.charCodeAt(0)));
  }

  /** The sections of a text, in order. */
  split(text: string): Section[] {
    const sections: Section[] = [];
    let [done, last] = [0, -1];
    for (let at = 0; at < text.length + Number(this.empty !== null); ) {
      const found = this.longestAt(text, at);
      // An empty spelling stands at every character, but not directly behind another token.
      if (found === null || (found.end === at && at === last)) {
        at += widthAt(text, at);
        continue;
      }
      const { token, end } = found;
      const [start, next] = [at, end];
      at = last = next;
      if (token.single_word && isInWord(text, start, next)) continue;
      const from = token.lstrip ? Math.max(spaceStart(text.slice(0, start)), done) : start;
      const to = token.rstrip ? spaceEnd(text, next) : next;
      if (done < from) sections.push({ start: done, end: from, token: null });
      // White space taken by the token before may leave nothing.
      if (from < to) sections.push({ start: from, end: to, token });
      done = to;
    }
    if (done < text.length) sections.push({ start: done, end: text.length, token: null });
    return sections;
  }

  private longestAt(text: string, at: number): { token: AddedToken; end: number } | null {
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

/** Units of the character at a place. */
const widthAt = (text: string, at: number): number =>
  (text.codePointAt(at) ?? 0) > 0xffff ? 2 : 1;

/** Returns whether the character before or behind a range belongs to a word. */
function isInWord(text: string, start: number, end: number): boolean {
  const before = text.slice(Math.max(0, start - 2), start);
  return WORD_END.test(before) || WORD_START.test(text.slice(end, end + 2));
}
