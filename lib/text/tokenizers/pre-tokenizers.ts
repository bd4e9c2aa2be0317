// Pre-tokenizers split a text into pieces, which the model encodes one by one. Source: the Rust
// crate tokenizers.
import { required } from '../../runtime/required.js';
import { isSpace, PUNCTUATION, spellBytes, WORD } from './characters.js';
import { Fields } from './fields.js';
import { createRegexFinder, findOccurrences, type MatchFinder, readPattern } from './pattern.js';

/** Pieces of a section of a text. */
interface SplitSection {
  readonly pieces: readonly string[];
  /**
   * For each piece, how many UTF-16 units at its start come from the first character of the whole
   * text.
   */
  readonly leads: readonly number[];
}

export type PreTokenizer = (cut: SplitSection) => SplitSection;

const BEHAVIORS = [
  'Removed',
  'Isolated',
  'MergedWithPrevious',
  'MergedWithNext',
  'Contiguous',
] as const;
type Behavior = (typeof BEHAVIORS)[number];

/** GPT-2's pattern of pieces. */
const PIECES = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

const BUILDERS: ReadonlyMap<string, (fields: Fields) => PreTokenizer> = new Map([
  ['BertPreTokenizer', createBert],
  ['ByteLevel', createByteLevel],
  ['CharDelimiterSplit', createDelimiter],
  ['Digits', createDigits],
  ['FixedLength', createFixedLength],
  ['Metaspace', createMetaspace],
  ['Punctuation', createPunctuation],
  ['Sequence', createSequence],
  ['Split', createSplit],
  ['Whitespace', () => createSplitter(findWords, 'Removed', true)],
  ['WhitespaceSplit', () => createSplitter(findSpaces, 'Removed')],
]);

/**
 * Returns the pre-tokenizer of a tokenizer.json, or null if it has none. Throws DS_DATA for an
 * unknown type or a wrong field.
 */
export function createPreTokenizer(location: string, content: unknown): PreTokenizer | null {
  return content === null || content === undefined
    ? null
    : new Fields(location, content).build(BUILDERS);
}

function createSequence(fields: Fields): PreTokenizer {
  const steps = fields.each('pretokenizers').map((step) => step.build(BUILDERS));
  return (cut) => steps.reduce((form, step) => step(form), cut);
}

/** Returns a finder of a JavaScript expression, which must run in linear time. */
const findNative =
  (expression: RegExp): MatchFinder =>
  (text) =>
    Array.from(text.matchAll(expression), ({ 0: found, index }) => [
      index,
      index + found.length,
    ]).flat();

const findWords = findNative(new RegExp(`[${WORD}]+|[^${WORD}\\p{White_Space}]+`, 'gu'));
const findMarks = findNative(new RegExp(`[${PUNCTUATION}]`, 'gu'));
const findNumbers = findNative(/\p{N}/gu);

function findSpaces(text: string): number[] {
  const bounds: number[] = [];
  for (let i = 0; i < text.length; ++i) if (isSpace(text.charCodeAt(i))) bounds.push(i, i + 1);
  return bounds;
}

function createBert(): PreTokenizer {
  const [bySpace, byMark] = [
    createSplitter(findSpaces, 'Removed'),
    createSplitter(findMarks, 'Isolated'),
  ];
  return (cut) => byMark(bySpace(cut));
}

function createDigits(fields: Fields): PreTokenizer {
  const isSingle = fields.flag('individual_digits', false);
  return createSplitter(findNumbers, isSingle ? 'Isolated' : 'Contiguous');
}

function createPunctuation(fields: Fields): PreTokenizer {
  return createSplitter(findMarks, readBehavior(fields));
}

function createSplit(fields: Fields): PreTokenizer {
  return createSplitter(readPattern(fields), readBehavior(fields), fields.flag('invert', false));
}

function readBehavior(fields: Fields): Behavior {
  const name = fields.text('behavior', 'Isolated');
  const found = BEHAVIORS.find((behavior) => behavior.toLowerCase() === name.toLowerCase());
  if (found) return found;
  throw fields.wrongError('behavior', BEHAVIORS.join(', '), name);
}

function createDelimiter(fields: Fields): PreTokenizer {
  const letter = fields.letter('delimiter');
  return createSplitter((text) => findOccurrences(text, letter), 'Removed');
}

function createFixedLength(fields: Fields): PreTokenizer {
  const length = fields.count('length', 5);
  if (length === 0) throw fields.wrongError('length', 'a number of at least 1', 0);
  return createSplitter((text) => {
    const bounds: number[] = [];
    let [start, count, at] = [0, 0, 0];
    for (const letter of text) {
      at += letter.length;
      if (++count % length !== 0) continue;
      bounds.push(start, at);
      start = at;
    }
    return bounds;
  }, 'Isolated');
}

function createMetaspace(fields: Fields): PreTokenizer {
  const mark = fields.letter('replacement', '▁');
  // Files older than prepend_scheme have only add_prefix_space.
  const isNever = fields.get('add_prefix_space') === false;
  const scheme = isNever ? 'never' : fields.text('prepend_scheme', 'always').toLowerCase();
  if (!['always', 'first', 'never'].includes(scheme)) {
    throw fields.wrongError('prepend_scheme', 'always, first, never', scheme);
  }
  const isSplit = fields.flag('split', true);
  const cutAtMarks = createSplitter((text) => findOccurrences(text, mark), 'MergedWithNext');
  return ({ pieces, leads }) => {
    const all: string[] = [];
    const counts: number[] = [];
    for (const [i, piece] of pieces.entries()) {
      const text = piece.replaceAll(' ', mark);
      const lead = piece.slice(0, leads[i] ?? 0).replaceAll(' ', mark).length;
      const isMarked = scheme === 'always' || (scheme === 'first' && lead > 0);
      const added = isMarked && text !== '' && !text.startsWith(mark) ? mark : '';
      all.push(added + text);
      counts.push(lead > 0 ? added.length + lead : 0);
    }
    const cut = { pieces: all, leads: counts };
    return isSplit ? cutAtMarks(cut) : cut;
  };
}

/** Maximum number of cached spellings; the cache is then emptied. */
const MAX_CACHED = 1 << 14;

function createByteLevel(fields: Fields): PreTokenizer {
  const prefixes = fields.flag('add_prefix_space', true);
  const split = fields.flag('use_regex', true)
    ? createSplitter(createRegexFinder(PIECES, fields.location), 'Isolated')
    : null;
  const cache = new Map<string, string>();
  const spell = (piece: string): string => {
    const cached = cache.get(piece);
    if (cached !== undefined) return cached;
    const letters = spellBytes(piece);
    if (cache.size >= MAX_CACHED) cache.clear();
    if (piece.length < 100) cache.set(piece, letters);
    return letters;
  };
  const prefixOf = (piece: string): string =>
    !prefixes || piece === '' || piece.startsWith(' ') ? '' : ' ';
  return (given) => {
    const marks = given.pieces.map(prefixOf);
    const pieces = given.pieces.map((piece, i) => marks[i] + piece);
    const leads = given.leads.map((lead, i) => lead && lead + required(marks[i]).length);
    const cut = split ? split({ pieces, leads }) : { pieces, leads };
    return {
      pieces: cut.pieces.map(spell),
      leads: cut.leads.map(
        (lead, i) => lead && spell(required(cut.pieces[i]).slice(0, lead)).length,
      ),
    };
  };
}

/**
 * Creates a step that splits pieces at matches. `isInverted` swaps matches and the text between
 * them.
 */
function createSplitter(find: MatchFinder, behavior: Behavior, isInverted = false): PreTokenizer {
  return ({ pieces, leads }) => {
    const all: string[] = [];
    const counts: number[] = [];
    for (const [i, piece] of pieces.entries()) {
      const lead = leads[i] ?? 0;
      const ranges = pieceRanges(piece, find(piece), behavior, isInverted);
      for (let j = 0; j < ranges.length; j += 2) {
        const [start, end] = [required(ranges[j]), required(ranges[j + 1])];
        if (start === end) continue;
        all.push(piece.slice(start, end));
        counts.push(Math.max(0, Math.min(lead, end) - start));
      }
    }
    return { pieces: all, leads: counts };
  };
}

/**
 * Returns the ranges of pieces: [start, end, start, end, ...]. Empty matches count, as in the
 * crate.
 */
function pieceRanges(
  text: string,
  bounds: readonly number[],
  behavior: Behavior,
  isInverted: boolean,
): number[] {
  const ranges: number[] = [];
  const areMatches: boolean[] = [];
  const add = (start: number, end: number, isMatch: boolean): void => {
    ranges.push(start, end);
    areMatches.push(isMatch !== isInverted);
  };
  let at = 0;
  for (let i = 0; i < bounds.length; i += 2) {
    const [start, end] = [required(bounds[i]), required(bounds[i + 1])];
    if (start > at) add(at, start, false);
    add(start, end, true);
    at = end;
  }
  if (at < text.length) add(at, text.length, false);
  switch (behavior) {
    case 'Isolated':
      return ranges;
    case 'Removed':
      return ranges.filter((_, i) => !areMatches[i >> 1]);
    default:
      return mergeRanges(ranges, areMatches, behavior);
  }
}

function mergeRanges(
  ranges: readonly number[],
  areMatches: readonly boolean[],
  behavior: 'Contiguous' | 'MergedWithNext' | 'MergedWithPrevious',
): number[] {
  const isReversed = behavior === 'MergedWithNext';
  const order = areMatches.map((_, i) => (isReversed ? areMatches.length - 1 - i : i));
  const merged: [number, number][] = [];
  let previous = false;
  for (const i of order) {
    const [start, end] = [required(ranges[2 * i]), required(ranges[2 * i + 1])];
    const isMatch = required(areMatches[i]);
    const joins = behavior === 'Contiguous' ? isMatch === previous : isMatch && !previous;
    const last = merged.at(-1);
    if (joins && last) last[isReversed ? 0 : 1] = isReversed ? start : end;
    else merged.push([start, end]);
    previous = isMatch;
  }
  return (isReversed ? merged.reverse() : merged).flat();
}
