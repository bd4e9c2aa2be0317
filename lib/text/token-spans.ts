// Finds the position of each token in a text, and the bytes of each token. The tokenizer returns
// ids without offsets, so the text is compared with the spelling of its tokens.
import { required } from '../runtime/required.js';
import { listSteps } from './tokenizer-folder.js';
import type { AddedToken } from './tokenizers/added-tokens.js';
import { BYTE_LETTERS, isSpace } from './tokenizers/characters.js';
import type { CoreTokenizer } from './tokenizers/core.js';

type TokenizerStep = Record<string, unknown>;

/**
 * How tokens spell text: "bytes" in GPT-2's alphabet; "pieces" with ▁ for a space and <0xNN> for a
 * byte.
 */
type Spelling = 'bytes' | 'pieces' | null;

const FORMS = ['NFC', 'NFD', 'NFKC', 'NFKD'];
const SPACE = 0x20;
const SPACE_MARKER = new TextEncoder().encode('▁');

const ALPHABET: ReadonlyMap<string, number> = new Map(
  BYTE_LETTERS.map((letter, byte) => [letter, byte]),
);

function detectSpelling(decoder: unknown): Spelling {
  const steps = JSON.stringify(decoder ?? null);
  if (steps.includes('"ByteLevel"')) return 'bytes';
  return steps.includes('"ByteFallback"') || steps.includes('"Metaspace"') ? 'pieces' : null;
}

const isForm = ({ type }: TokenizerStep): boolean => FORMS.includes(String(type));

/** Returns whether a normalizer replaces spaces by ▁, or puts ▁ before the text. */
const isSpaceMarker = ({ type, pattern }: TokenizerStep): boolean =>
  type === 'Prepend' || (type === 'Replace' && JSON.stringify(pattern) === '{"String":" "}');

/** Finds the tokens of texts that its tokenizer has encoded. */
export class TokenSpans {
  /** Spelling of tokens, without regard to the normalizer. */
  private readonly baseSpelling: Spelling;
  /** Spelling of tokens if the normalizer is supported; else null. */
  private readonly spelling: Spelling;
  /** Unicode normalization forms that are applied, in order. */
  private readonly forms: string[];
  private readonly added: ReadonlyMap<number, AddedToken>;

  /** `tokenizer` is the content of tokenizer.json. */
  constructor(
    private readonly core: CoreTokenizer,
    tokenizer: Record<string, unknown>,
  ) {
    this.added = core.added;
    this.baseSpelling = detectSpelling(tokenizer.decoder);
    const steps = listSteps(tokenizer.normalizer);
    this.forms = steps.map(({ type }) => String(type)).filter((type) => FORMS.includes(type));
    const understood = steps.every(
      (step) => isForm(step) || (this.baseSpelling === 'pieces' && isSpaceMarker(step)),
    );
    this.spelling = understood ? this.baseSpelling : null;
  }

  /**
   * Returns the text as its tokens spell it. To keep positions, split the text into parts first.
   */
  normalize(text: string): string {
    return this.forms.reduce((form, name) => form.normalize(name), text);
  }

  /**
   * Returns the position of each token in the UTF-8 of normalize(text), then the end. Returns null
   * if the tokens do not spell the text: unknown tokens, or an unsupported normalizer.
   */
  find(ids: ArrayLike<number>, normalized: string): Uint32Array | null {
    if (this.spelling === null) return null;
    const bytes = Buffer.from(normalized);
    const starts = new Uint32Array(ids.length + 1);
    let at = 0;
    for (let i = 0; i < ids.length; ++i) {
      starts[i] = at;
      at = this.matchToken(required(ids[i]), bytes, at);
      if (at < 0) return null;
    }
    starts[ids.length] = at;
    return at === bytes.length ? starts : null;
  }

  /** Returns the bytes of a token in a text; null if its spelling is unknown. */
  bytesOf(id: number): Uint8Array | null {
    const added = this.added.get(id);
    if (added) return Buffer.from(added.content);
    const token = this.core.vocab[id] ?? '';
    if (this.baseSpelling === 'bytes') return decodeLetters(token);
    if (this.baseSpelling !== 'pieces') return null;
    const code = /^<0x([0-9A-F]{2})>$/.exec(token);
    if (code) return Uint8Array.of(Number.parseInt(required(code[1]), 16));
    return Buffer.from(token.replaceAll('▁', ' '));
  }

  /** Returns the end of the token at `at`, or -1 if the text has another token there. */
  private matchToken(id: number, bytes: Buffer, at: number): number {
    const added = this.added.get(id);
    if (added) return matchAdded(added, bytes, at);
    const token = this.core.vocab[id];
    if (token === undefined) return -1;
    return this.spelling === 'bytes'
      ? this.matchBytes(token, bytes, at)
      : matchPiece(token, bytes, at);
  }

  private matchBytes(token: string, bytes: Buffer, at: number): number {
    let end = at;
    for (const letter of token) if (ALPHABET.get(letter) !== bytes[end++]) return -1;
    return end;
  }
}

/** Returns the bytes of a token; null if a letter is not in the alphabet. */
function decodeLetters(token: string): Uint8Array | null {
  const bytes = Array.from(token, (letter) => ALPHABET.get(letter));
  return bytes.includes(undefined) ? null : Uint8Array.from(bytes as number[]);
}

/** Matches an added token, which may include the whitespace around it. */
function matchAdded({ content, lstrip, rstrip }: AddedToken, bytes: Buffer, at: number): number {
  const tokenBytes = Buffer.from(content);
  const start = lstrip ? skipBlanks(bytes, at) : at;
  if (!startsWith(bytes, tokenBytes, start)) return -1;
  const end = start + tokenBytes.length;
  return rstrip ? skipBlanks(bytes, end) : end;
}

function skipBlanks(bytes: Buffer, at: number): number {
  for (let end = at; ; ) {
    // A whitespace character has at most three bytes.
    const code = bytes.toString('utf8', end, end + 3).codePointAt(0);
    if (code === undefined || !isSpace(code)) return end;
    end += Buffer.byteLength(String.fromCodePoint(code));
  }
}

function matchPiece(token: string, bytes: Buffer, at: number): number {
  const code = /^<0x([0-9A-F]{2})>$/.exec(token);
  if (code) return bytes[at] === Number.parseInt(required(code[1]), 16) ? at + 1 : -1;
  const end = matchMarked(token, bytes, at);
  // The first ▁ of a section is no space if the tokenizer puts ▁ before every text.
  return end < 0 && token.startsWith('▁') ? matchMarked(token.slice(1), bytes, at) : end;
}

function matchMarked(token: string, bytes: Buffer, at: number): number {
  let end = at;
  for (const letter of token) {
    if (letter === '▁' && bytes[end] === SPACE) {
      end++;
      continue;
    }
    const tokenBytes = letter === '▁' ? Buffer.from(SPACE_MARKER) : Buffer.from(letter);
    if (!startsWith(bytes, tokenBytes, end)) return -1;
    end += tokenBytes.length;
  }
  return end;
}

function startsWith(bytes: Buffer, part: Buffer, at: number): boolean {
  return bytes.subarray(at, at + part.length).equals(part);
}

/**
 * Returns a mask with 1 for tokens that overlap a piece with an odd index. Odd pieces are the
 * assistant's.
 */
export function maskOddPieces(starts: Uint32Array, pieces: readonly string[]): Uint8Array {
  const mask = new Uint8Array(starts.length - 1);
  let at = 0;
  let token = 0;
  pieces.forEach((piece, number) => {
    const end = at + Buffer.byteLength(piece);
    if (number % 2 === 1 && end > at) {
      while (token < mask.length && required(starts[token + 1]) <= at) token++;
      for (let i = token; i < mask.length && required(starts[i]) < end; ++i) mask[i] = 1;
    }
    at = end;
  });
  return mask;
}
