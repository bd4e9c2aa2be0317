// Breaks text into lines of a width, as Python's textwrap does.
import { required } from '../../runtime/required.js';
import { spend, valueError } from './fault.js';
import { isSpace } from './unicode.js';

interface WrapOptions {
  width: number;
  breaksWords: boolean;
  breaksHyphens: boolean;
}

const BLANK = '[\\t\\n\\x0b\\x0c\\r ]';
const WORD = '[\\p{L}\\p{N}_!"\'&.,?]';
/** Letters of words without decimal digits. */
const LETTER = '[\\p{L}\\p{Nl}\\p{No}_]';
const NOT_BLANK = '[^\\t\\n\\x0b\\x0c\\r ]';

/** Matches words, blanks, and parts of words at hyphens and dashes. */
const CHUNKS = new RegExp(
  `(${BLANK}+|(?<=${WORD})-{2,}(?=[\\p{L}\\p{N}_])|${NOT_BLANK}+?(?:-(?:(?<=${LETTER}{2}-)|(?<=${LETTER}-${LETTER}-))(?=${LETTER}-?${LETTER})|(?=${BLANK}|$)|(?<=${WORD})(?=-{2,}[\\p{L}\\p{N}_])))`,
  'u',
);
const WORDS = new RegExp(`(${BLANK}+)`);

/** A word or blanks: the letters from `start` on. */
interface Chunk {
  letters: readonly string[];
  start: number;
}

const chunkLength = ({ letters, start }: Chunk): number => letters.length - start;

function isBlank({ letters, start }: Chunk): boolean {
  for (let i = start; i < letters.length; ++i) if (!isSpace(required(letters[i]))) return false;
  return true;
}

/** Returns the lines of one paragraph. */
export function wrapText(text: string, options: WrapOptions): string[] {
  const { width } = options;
  if (width <= 0) throw valueError(`invalid width ${width} (must be > 0)`);
  // Splits first, because the pattern examines each letter many times.
  spend(text.length * 16);
  const chunks = text
    .split(options.breaksHyphens ? CHUNKS : WORDS)
    .filter((chunk) => chunk !== '' && chunk !== undefined)
    .map((chunk): Chunk => ({ letters: Array.from(chunk), start: 0 }))
    .reverse();
  const lines: string[] = [];
  while (chunks.length > 0) {
    spend();
    const line: Chunk[] = [];
    let length = 0;
    if (lines.length > 0 && isBlank(required(chunks.at(-1)))) chunks.pop();
    while (chunks.length > 0) {
      const size = chunkLength(required(chunks.at(-1)));
      if (length + size > width) break;
      line.push(required(chunks.pop()));
      length += size;
    }
    const next = chunks.at(-1);
    if (next !== undefined && chunkLength(next) > width) breakWord(chunks, line, length, options);
    if (line.length > 0 && isBlank(required(line.at(-1)))) line.pop();
    if (line.length > 0) lines.push(line.map(chunkText).join(''));
  }
  return lines;
}

const chunkText = ({ letters, start }: Chunk): string => letters.slice(start).join('');

/** Moves the part of a long word that fits to the line. */
function breakWord(chunks: Chunk[], line: Chunk[], length: number, options: WrapOptions): void {
  const { width, breaksWords, breaksHyphens } = options;
  const { letters, start } = required(chunks.at(-1));
  if (!breaksWords) {
    if (line.length === 0) line.push(required(chunks.pop()));
    return;
  }
  let end = start + width - length;
  if (breaksHyphens && letters.length > end && end > start) {
    const hyphen = letters.lastIndexOf('-', end - 1);
    const isInside = hyphen > start;
    if (isInside && letters.slice(start, hyphen).some((letter) => letter !== '-')) end = hyphen + 1;
  }
  line.push({ letters: letters.slice(start, end), start: 0 });
  chunks[chunks.length - 1] = { letters, start: end };
}
