// Compiles JavaScript's regular expressions to grammar nodes. Lookaround, backreferences and word
// boundaries are refused.
import { argumentError } from '../../runtime/input-errors.js';
import { required } from '../../runtime/required.js';
import { type CodePoints, complement, intersection, type Range, union } from './characters.js';
import type { GrammarBuilder, Node } from './description.js';

/** A parsed pattern. */
type PatternTree =
  | { readonly kind: 'set'; readonly points: CodePoints }
  | { readonly kind: 'seq' | 'any'; readonly parts: readonly PatternTree[] }
  | {
      readonly kind: 'repeat';
      readonly part: PatternTree;
      readonly min: number;
      readonly max: number;
    }
  | { readonly kind: 'start' }
  | { readonly kind: 'end' };

/** Largest repetition count. */
const MAX_REPEATS = 100_000;
const MAX_NESTING = 200;
const MAX_CODE_POINT = 0x10ffff;

const DIGITS: CodePoints = [[0x30, 0x39]];
const WORD = union(DIGITS, [
  [0x41, 0x5a],
  [0x5f, 0x5f],
  [0x61, 0x7a],
]);
const LINE_ENDS: CodePoints = [
  [0x0a, 0x0a],
  [0x0d, 0x0d],
  [0x2028, 0x2029],
];
const CONTROLS: Readonly<Record<string, number>> = { n: 10, r: 13, t: 9, v: 11, f: 12, 0: 0 };

/** Source: the character class escape \s of ECMAScript. */
const SPACES: CodePoints = [
  ...([
    [0x09, 0x0d],
    [0x20, 0x20],
    [0xa0, 0xa0],
    [0x1680, 0x1680],
    [0x2000, 0x200a],
  ] as const),
  ...([
    [0x2028, 0x2029],
    [0x202f, 0x202f],
    [0x205f, 0x205f],
    [0x3000, 0x3000],
  ] as const),
  [0xfeff, 0xfeff],
];

const properties = new Map<string, CodePoints>();
const PLANE = 0x10000;

/**
 * Returns the characters of a property escape such as \p{L}. It runs the RegExp on all characters
 * of each plane.
 */
function findProperty(op: string, name: string): CodePoints {
  const cached = properties.get(name);
  if (cached) return cached;
  let runs: RegExp;
  try {
    runs = new RegExp(`${name}+`, 'gu');
  } catch {
    throw argumentError(op, 'a property of Unicode', name);
  }
  const out: Range[] = [];
  for (let first = 0; first <= MAX_CODE_POINT; first += PLANE) {
    const codes = Array.from({ length: PLANE }, (_, i) => first + i);
    const withoutSurrogates = codes.filter((code) => code < 0xd800 || code > 0xdfff);
    const plane = withoutSurrogates.map((code) => String.fromCodePoint(code)).join('');
    for (const [run] of plane.matchAll(runs)) {
      const letters = [...run];
      const ends = [letters[0], letters.at(-1)].map((item) => required(item?.codePointAt(0)));
      out.push([required(ends[0]), required(ends[1])]);
    }
  }
  const points = union(out);
  properties.set(name, points);
  return points;
}

class PatternReader {
  private readonly letters: readonly string[];
  private position = 0;
  private nesting = 0;

  constructor(
    private readonly op: string,
    private readonly source: string,
  ) {
    this.letters = [...source];
  }

  read(): PatternTree {
    const tree = this.readAlternatives();
    if (this.position < this.letters.length)
      throw this.syntaxError('a pattern with balanced parentheses', ')');
    return tree;
  }

  private readAlternatives(): PatternTree {
    if (++this.nesting > MAX_NESTING)
      throw this.syntaxError(`at most ${MAX_NESTING} groups`, 'more');
    const parts = [this.readSequence()];
    while (this.take('|')) parts.push(this.readSequence());
    this.nesting--;
    return parts.length === 1 ? required(parts[0]) : { kind: 'any', parts };
  }

  private readSequence(): PatternTree {
    const parts: PatternTree[] = [];
    for (let next = this.peek(); next !== undefined && next !== '|' && next !== ')'; ) {
      parts.push(this.readRepeat(this.readAtom()));
      next = this.peek();
    }
    return { kind: 'seq', parts };
  }

  private readRepeat(part: PatternTree): PatternTree {
    const counts = this.readCounts();
    if (!counts) return part;
    this.take('?');
    if (hasEdge(part)) throw this.syntaxError('^ and $ without a repetition', this.source);
    const [min, max] = counts;
    if (max < min || min > MAX_REPEATS || (max > MAX_REPEATS && max !== Infinity)) {
      throw this.syntaxError(`ascending counts up to ${MAX_REPEATS}`, `{${min},${max}}`);
    }
    if (this.readCounts()) throw this.syntaxError('one repetition of a part', this.source);
    return { kind: 'repeat', part, min: min, max: max };
  }

  private readCounts(): [number, number] | null {
    if (this.take('*')) return [0, Number.POSITIVE_INFINITY];
    if (this.take('+')) return [1, Number.POSITIVE_INFINITY];
    if (this.take('?')) return [0, 1];
    if (this.peek() !== '{') return null;
    const following = this.letters.slice(this.position, this.position + 30).join('');
    const [match, min, comma, max] = /^\{(\d+)(,?)(\d*)\}/.exec(following) ?? [];
    if (match === undefined) return null;
    this.position += match.length;
    const end = max ? Number(max) : comma ? Number.POSITIVE_INFINITY : Number(min);
    return [Number(min), end];
  }

  private readAtom(): PatternTree {
    const letter = this.next();
    if (letter === '(') return this.readGroup();
    if (letter === '[') return { kind: 'set', points: this.readClass() };
    if (letter === '.') return { kind: 'set', points: complement(LINE_ENDS) };
    if (letter === '^') return { kind: 'start' };
    if (letter === '$') return { kind: 'end' };
    if (letter === '\\') return { kind: 'set', points: this.readEscape(false) };
    if ('*+?'.includes(letter)) throw this.syntaxError('a part before a repetition', letter);
    return { kind: 'set', points: single(letter) };
  }

  private readGroup(): PatternTree {
    if (this.take('?')) {
      const kind = this.next();
      const isNamed = kind === '<' && this.peek() !== '=' && this.peek() !== '!';
      if (isNamed) while (this.next() !== '>');
      else if (kind !== ':') {
        throw this.syntaxError('groups without lookaround and flags', `(?${kind}`);
      }
    }
    const tree = this.readAlternatives();
    if (!this.take(')')) throw this.syntaxError('a pattern with balanced parentheses', this.source);
    return tree;
  }

  private readClass(): CodePoints {
    const isNegative = this.take('^');
    const parts: CodePoints[] = [];
    while (!this.take(']')) {
      const first = this.readMember();
      const isRange = this.peek() === '-' && this.peek(1) !== ']' && this.peek(1) !== undefined;
      if (!isRange) {
        parts.push(first);
        continue;
      }
      this.next();
      const last = this.readMember();
      const [from, to] = [singleCodePoint(first), singleCodePoint(last)];
      if (from === null || to === null) {
        parts.push(first, single('-'), last);
      } else {
        if (from > to) throw this.syntaxError('ascending ranges', this.source);
        parts.push([[from, to]]);
      }
    }
    const points = union(...parts);
    return isNegative ? complement(points) : points;
  }

  private readMember(): CodePoints {
    const letter = this.next();
    return letter === '\\' ? this.readEscape(true) : single(letter);
  }

  private readEscape(isInClass: boolean): CodePoints {
    const letter = this.next();
    const control = CONTROLS[letter];
    if (control !== undefined && !(letter === '0' && /\d/.test(this.peek() ?? ''))) {
      return [[control, control]];
    }
    switch (letter) {
      case 'd':
        return DIGITS;
      case 'D':
        return complement(DIGITS);
      case 'w':
        return WORD;
      case 'W':
        return complement(WORD);
      case 's':
        return SPACES;
      case 'S':
        return complement(SPACES);
      case 'p':
      case 'P':
        return this.readProperty(letter);
      case 'x':
        return code(this.readHex(2));
      case 'u':
        return code(this.readUnicode());
      case 'c':
        return code(required(this.next().codePointAt(0)) % 32);
      case 'b':
        if (isInClass) return code(8);
    }
    if (/[a-zA-Z0-9]/.test(letter)) {
      throw this.syntaxError('escapes without backreferences and boundaries', `\\${letter}`);
    }
    return single(letter);
  }

  private readProperty(letter: string): CodePoints {
    if (!this.take('{')) throw this.syntaxError(`\\${letter}{NAME}`, `\\${letter}`);
    let name = '';
    for (let next = this.next(); next !== '}'; next = this.next()) name += next;
    return findProperty(this.op, `\\${letter}{${name}}`);
  }

  private readUnicode(): number {
    if (!this.take('{')) {
      const high = this.readHex(4);
      const isPair = high >= 0xd800 && high <= 0xdbff && this.peek() === '\\';
      if (!isPair || this.peek(1) !== 'u') return high;
      this.position += 2;
      return String.fromCharCode(high, this.readHex(4)).codePointAt(0) ?? high;
    }
    let digits = '';
    for (let next = this.next(); next !== '}'; next = this.next()) digits += next;
    const code = Number.parseInt(digits, 16);
    if (/^[\da-f]+$/i.test(digits) && code <= MAX_CODE_POINT) return code;
    throw this.syntaxError('a code point', `\\u{${digits}}`);
  }

  private readHex(count: number): number {
    const digits = this.letters.slice(this.position, this.position + count).join('');
    if (digits.length !== count || !/^[\da-f]+$/i.test(digits)) {
      throw this.syntaxError(`${count} hexadecimal digits`, digits);
    }
    this.position += count;
    return Number.parseInt(digits, 16);
  }

  private peek(ahead = 0): string | undefined {
    return this.letters[this.position + ahead];
  }

  private next(): string {
    const letter = this.letters[this.position++];
    if (letter !== undefined) return letter;
    throw this.syntaxError('a whole pattern', `${this.source}, which ends too early`);
  }

  private take(letter: string): boolean {
    if (this.peek() !== letter) return false;
    this.position++;
    return true;
  }

  private syntaxError(expected: string, got: string): Error {
    return argumentError(this.op, expected, got.slice(0, 80));
  }
}

const code = (point: number): CodePoints => [[point, point]];
const single = (letter: string): CodePoints => code(required(letter.codePointAt(0)));

function singleCodePoint(points: CodePoints): number | null {
  const [range] = points;
  return points.length === 1 && range && range[0] === range[1] ? range[0] : null;
}

function hasEdge(tree: PatternTree): boolean {
  if (tree.kind === 'repeat') return hasEdge(tree.part);
  if (tree.kind === 'seq' || tree.kind === 'any') return tree.parts.some(hasEdge);
  return tree.kind !== 'set';
}

/** How to convert a pattern to a node. */
interface PatternOptions {
  /** Location for errors. */
  op: string;
  /** Returns a node that matches one character of a set, in the spelling of the text. */
  character: (points: CodePoints) => Node;
  /** Whether a match may start and end inside the text, as in schemas. */
  isSearch: boolean;
}

/**
 * Returns a node that matches the texts of a pattern. Throws DS_ARGUMENT with the unsupported
 * construct.
 */
export function patternNode(to: GrammarBuilder, source: string, options: PatternOptions): Node {
  const { op, character, isSearch } = options;
  const tree = new PatternReader(op, source).read();
  const around = isSearch ? to.star(character([[0, MAX_CODE_POINT]])) : to.epsilon;
  const setNodes = new Map<string, Node>();
  const set = (points: readonly Range[]): Node => {
    const key = points.join(' ');
    const existing = setNodes.get(key);
    if (existing !== undefined) return existing;
    const node = character(intersection(points, [[0, MAX_CODE_POINT]]));
    setNodes.set(key, node);
    return node;
  };
  /** `left` and `right`: whether the part is at the start or the end of the pattern. */
  const emit = (part: PatternTree, left: boolean, right: boolean): Node => {
    const frame = (node: Node): Node =>
      to.seq(left ? around : to.epsilon, node, right ? around : to.epsilon);
    switch (part.kind) {
      case 'set':
        return frame(set(part.points));
      case 'repeat':
        return frame(to.repeat(emit(part.part, false, false), part.min, part.max));
      case 'any':
        return to.any(...part.parts.map((part) => emit(part, left, right)));
      case 'seq': {
        const { parts } = part;
        if (parts.length === 0) return left || right ? frame(to.epsilon) : to.epsilon;
        return to.seq(
          ...parts.map((part, i) => emit(part, left && i === 0, right && i === parts.length - 1)),
        );
      }
      case 'start':
        if (left) return right ? around : to.epsilon;
        break;
      case 'end':
        if (right) return left ? around : to.epsilon;
        break;
    }
    throw argumentError(op, '^ and $ at the ends of the pattern', source.slice(0, 80));
  };
  return emit(tree, true, true);
}
