// Random texts of a grammar: each token is drawn from the mask, as a model without knowledge would.
import { strict as assert } from 'node:assert';
import { Matcher, type NativeGrammar, TokenTrie } from '../../../lib/runtime/grammar.js';
import { required } from '../../../lib/runtime/required.js';

/** Random numbers of a seed (mulberry32). */
export class Seeded {
  constructor(private state: number) {}

  next(): number {
    this.state = (this.state + 0x6d2b79f5) | 0;
    let t = Math.imul(this.state ^ (this.state >>> 15), 1 | this.state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  }

  /** From `least` up to `below`, without it. */
  integer = (least: number, below: number): number =>
    least + Math.floor(this.next() * (below - least));
  chance = (probability: number): boolean => this.next() < probability;
  pick = <T>(list: readonly T[]): T => list[this.integer(0, list.length)] as T;
}

const PIECES = [
  ...['":', '": ', '", "', '","', '{"', '"}', '"]', '}, {', '[]', '{}', '],', '},', ' "', ', '],
  ...['ab', 'abc', 'name', 'the', ' the', 'éa', '日本', '😀', 'x_', '_id', 'foo', 'bar', 'id'],
  ...['123', '12', '00', '.5', '0.', 'e1', '-1', 'true', 'null', 'false', '\\n', '\\"', '\\u00'],
  ...['  ', '\n', '\n  ', '\t', '    ', '2024-', '-02-29', 'T12:', ':00', '@', '.com', 'https://'],
];

/** Tokens of a small vocabulary: all bytes, some pieces, an empty one; the last one ends a text. */
export const TOKENS: readonly Uint8Array[] = [
  ...Array.from({ length: 256 }, (_, byte) => Uint8Array.of(byte)),
  ...PIECES.map((piece) => new Uint8Array(Buffer.from(piece))),
  new Uint8Array(0),
  new Uint8Array(0),
];
export const END = TOKENS.length - 1;

let trie: Promise<TokenTrie> | null = null;
export function smallTrie(): Promise<TokenTrie> {
  trie ??= TokenTrie.build(TOKENS);
  return trie;
}

/** Masks of one matcher at a time. */
export class Masks {
  private readonly words: Int32Array;

  constructor(private readonly size: number) {
    this.words = new Int32Array(Math.ceil(size / 32));
  }

  /** The allowed tokens. */
  of(matcher: Matcher): number[] {
    matcher.fill(this.words);
    const allowed: number[] = [];
    for (let token = 0; token < this.size; ++token) {
      if ((required(this.words[token >> 5]) >>> (token & 31)) & 1) allowed.push(token);
    }
    return allowed;
  }
}

export interface Walked {
  text: string;
  isFinished: boolean;
  tokens: number[];
}

/** Draws at most `maxTokens` tokens. Throws if no token is allowed before the end. */
export function walk(grammar: NativeGrammar, random: Seeded, maxTokens = 200): Walked {
  const matcher = new Matcher(grammar, [END]);
  const masks = new Masks(TOKENS.length);
  const bytes: number[] = [];
  const tokens: number[] = [];
  let isFinished = false;
  // Later tokens prefer an end, so that most texts finish.
  const eager = [END, ...['"', '}', ']', '"}', '"]'].map(tokenOf)];
  while (!isFinished && tokens.length < maxTokens) {
    const allowed = masks.of(matcher);
    assert.ok(allowed.length > 0, `stuck after ${Buffer.from(bytes).toString()}`);
    const ends = allowed.filter((token) => eager.includes(token));
    const hurries = ends.length > 0 && random.next() < tokens.length / maxTokens + 0.1;
    const token = random.pick(hurries ? ends : allowed);
    assert.ok(matcher.accept(token), `token ${token} of the mask was refused`);
    tokens.push(token);
    bytes.push(...required(TOKENS[token]));
    isFinished = token === END;
  }
  matcher.dispose();
  return { text: Buffer.from(bytes).toString(), isFinished, tokens };
}

export const tokenOf = (text: string): number =>
  TOKENS.findIndex((token) => Buffer.from(token).equals(Buffer.from(text)));
