// Character classes as in Rust's standard library and its crates.

/** Rust's char::is_whitespace(), Unicode's White_Space. */
export function isSpace(code: number): boolean {
  if (code < 0x80) return code === 0x20 || (code >= 9 && code <= 13);
  if (code < 0x1680) return code === 0x85 || code === 0xa0;
  return (
    (code >= 0x2000 && code <= 0x200a) ||
    [0x1680, 0x2028, 0x2029, 0x202f, 0x205f, 0x3000].includes(code)
  );
}

/** Returns the end of the whitespace that starts at `from`. */
export function spaceEnd(text: string, from = 0): number {
  let at = from;
  while (at < text.length && isSpace(text.charCodeAt(at))) at++;
  return at;
}

/** Returns the start of the trailing whitespace, but not before `from`. */
export function spaceStart(text: string, from = 0): number {
  let at = text.length;
  while (at > from && isSpace(text.charCodeAt(at - 1))) at--;
  return at;
}

/** \w of the Rust crate regex. */
export const WORD = '\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\p{Join_Control}';
/** ASCII punctuation, and Unicode's category P. */
export const PUNCTUATION = '\\p{P}!-/:-@\\[-`{-~';

/** Rust's char::to_lowercase() of each character: a sigma at the end of a word stays "σ". */
export const lowercase = (text: string): string =>
  text
    .split('Σ')
    .map((part) => part.toLowerCase())
    .join('σ');

/** GPT-2's alphabet: one letter per byte. Printable bytes are themselves. */
export const BYTE_LETTERS: readonly string[] = buildByteLetters();

function buildByteLetters(): string[] {
  const isPrintable = (byte: number): boolean =>
    (byte >= 33 && byte <= 126) || (byte >= 161 && byte !== 173);
  let others = 0;
  return Array.from({ length: 256 }, (_, byte) =>
    String.fromCodePoint(isPrintable(byte) ? byte : 256 + others++),
  );
}

/** Replaces each byte of a text by its letter. */
export function spellBytes(text: string): string {
  let letters = '';
  for (const byte of Buffer.from(text)) letters += BYTE_LETTERS[byte];
  return letters;
}
