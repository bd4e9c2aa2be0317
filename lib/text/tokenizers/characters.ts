// Classes of characters as Rust's standard library and its crates define them.

/** Rust's char::is_whitespace(), Unicode's White_Space. */
export function isSpace(code: number): boolean {
  if (code < 0x80) return code === 0x20 || (code >= 9 && code <= 13);
  if (code < 0x1680) return code === 0x85 || code === 0xa0;
  return (
    (code >= 0x2000 && code <= 0x200a) ||
    [0x1680, 0x2028, 0x2029, 0x202f, 0x205f, 0x3000].includes(code)
  );
}

/** Where the white space at the start of a text ends. */
export function spaceEnd(text: string, from = 0): number {
  let at = from;
  while (at < text.length && isSpace(text.charCodeAt(at))) at++;
  return at;
}

/** Where the white space at the end of a text starts, not before `from`. */
export function spaceStart(text: string, from = 0): number {
  let at = text.length;
  while (at > from && isSpace(text.charCodeAt(at - 1))) at--;
  return at;
}

/** \w of Rust's crate regex. */
export const WORD = '\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\p{Join_Control}';
/** ASCII punctuation, and Unicode's category P. */
export const PUNCTUATION = '\\p{P}!-/:-@\\[-`{-~';

/** Rust's char::to_lowercase() of each character: a sigma at the end of a word stays "σ". */
export const lowercase = (text: string): string =>
  text
    .split('Σ')
    .map((part) => part.toLowerCase())
    .join('σ');

/** GPT-2's alphabet: a letter for each byte. Printable bytes are themselves. */
export const BYTE_LETTERS: readonly string[] = byteLetters();

function byteLetters(): string[] {
  const isPrintable = (byte: number): boolean =>
    (byte >= 33 && byte <= 126) || (byte >= 161 && byte !== 173);
  let others = 0;
  return Array.from({ length: 256 }, (_, byte) =>
    String.fromCodePoint(isPrintable(byte) ? byte : 256 + others++),
  );
}

/** The bytes of a text, each as its letter. */
export function spellBytes(text: string): string {
  let spelled = '';
  for (const byte of Buffer.from(text)) spelled += BYTE_LETTERS[byte];
  return spelled;
}
