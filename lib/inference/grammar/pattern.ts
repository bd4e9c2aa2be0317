// Regular expressions of JavaScript as nodes of a grammar. Lookaround, backreferences and word
// boundaries are refused.
import { argumentError } from '../../runtime/input-errors.js';
import { required } from '../../runtime/required.js';
import { type CodePoints, complement, intersection, type Range, union } from './characters.js';
import type { Description, Node } from './description.js';

/** A parsed pattern. */
type Tree =
  | { readonly kind: 'set'; readonly points: CodePoints }
  | { readonly kind: 'seq' | 'any'; readonly parts: readonly Tree[] }
  | { readonly kind: 'repeat'; readonly part: Tree; readonly min: number; readonly max: number }
  | { readonly kind: 'start' }
  | { readonly kind: 'end' };

/** Largest repetition count. */
const MAX_REPEATS = 100_000;
const MAX_NESTING = 200;
const LAST = 0x10ffff;

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

/** The characters of a property escape such as \p{L}: RegExp finds their runs in each plane. */
function property(op: string, name: string): CodePoints {
  const known = properties.get(name);
  if (known) return known;
  let runs: RegExp;
  try {
    runs = new RegExp(`${name}+`, 'gu');
  } catch {
    throw argumentError(op, 'a property of Unicode', name);
  }
  const out: Range[] = [];
  for (let first = 0; first <= LAST; first += PLANE) {
    const codes = Array.from({ length: PLANE }, (_, i) => first + i);
    const kept = codes.filter((code) => code < 0xd800 || code > 0xdfff);
    const plane = kept.map((code) => String.fromCodePoint(code)).join('');
    for (const [run] of plane.matchAll(runs)) {
      const letters = [...run];
      const ends = [letters[0], letters.at(-1)].map((item) => required(item?.codePointAt(0)));
      out.push([required(ends[0]), required(ends[1])]);
    }
  }
  const found = union(out);
  properties.set(name, found);
  return found;
}

class PatternReader {
  private readonly letters: readonly string[];
  private at = 0;
  private nesting = 0;

  constructor(
    private readonly op: string,
    private readonly source: string,
  ) {
    this.letters = [...source];
  }

  read(): Tree {
    const tree = this.alternatives();
    if (this.at < this.letters.length) throw this.fault('a pattern with balanced parentheses', ')');
    return tree;
  }

  private alternatives(): Tree {
    if (++this.nesting > MAX_NESTING) throw this.fault(`at most ${MAX_NESTING} groups`, 'more');
    const parts = [this.sequence()];
    while (this.takes('|')) parts.push(this.sequence());
    this.nesting--;
    return parts.length === 1 ? required(parts[0]) : { kind: 'any', parts };
  }

  private sequence(): Tree {
    const parts: Tree[] = [];
    for (let next = this.peek(); next !== undefined && next !== '|' && next !== ')'; ) {
      parts.push(this.readRepeat(this.atom()));
      next = this.peek();
    }
    return { kind: 'seq', parts };
  }

  private readRepeat(part: Tree): Tree {
    const counts = this.counts();
    if (!counts) return part;
    this.takes('?');
    if (hasEdge(part)) throw this.fault('^ and $ without a repetition', this.source);
    const [min, max] = counts;
    if (max < min || min > MAX_REPEATS || (max > MAX_REPEATS && max !== Infinity)) {
      throw this.fault(`ascending counts up to ${MAX_REPEATS}`, `{${min},${max}}`);
    }
    if (this.counts()) throw this.fault('one repetition of a part', this.source);
    return { kind: 'repeat', part, min: min, max: max };
  }

  private counts(): [number, number] | null {
    if (this.takes('*')) return [0, Number.POSITIVE_INFINITY];
    if (this.takes('+')) return [1, Number.POSITIVE_INFINITY];
    if (this.takes('?')) return [0, 1];
    if (this.peek() !== '{') return null;
    const rest = this.letters.slice(this.at, this.at + 30).join('');
    const [whole, min, comma, max] = /^\{(\d+)(,?)(\d*)\}/.exec(rest) ?? [];
    if (whole === undefined) return null;
    this.at += whole.length;
    const end = max ? Number(max) : comma ? Number.POSITIVE_INFINITY : Number(min);
    return [Number(min), end];
  }

  private atom(): Tree {
    const letter = this.next();
    if (letter === '(') return this.group();
    if (letter === '[') return { kind: 'set', points: this.charClass() };
    if (letter === '.') return { kind: 'set', points: complement(LINE_ENDS) };
    if (letter === '^') return { kind: 'start' };
    if (letter === '$') return { kind: 'end' };
    if (letter === '\\') return { kind: 'set', points: this.escape(false) };
    if ('*+?'.includes(letter)) throw this.fault('a part before a repetition', letter);
    return { kind: 'set', points: single(letter) };
  }

  private group(): Tree {
    if (this.takes('?')) {
      const kind = this.next();
      const isNamed = kind === '<' && this.peek() !== '=' && this.peek() !== '!';
      if (isNamed) while (this.next() !== '>');
      else if (kind !== ':') {
        throw this.fault('groups without lookaround and flags', `(?${kind}`);
      }
    }
    const tree = this.alternatives();
    if (!this.takes(')')) throw this.fault('a pattern with balanced parentheses', this.source);
    return tree;
  }

  private charClass(): CodePoints {
    const isNegative = this.takes('^');
    const parts: CodePoints[] = [];
    while (!this.takes(']')) {
      const first = this.member();
      const isRange = this.peek() === '-' && this.peek(1) !== ']' && this.peek(1) !== undefined;
      if (!isRange) {
        parts.push(first);
        continue;
      }
      this.next();
      const last = this.member();
      const [from, to] = [oneOf(first), oneOf(last)];
      if (from === null || to === null) {
        parts.push(first, single('-'), last);
      } else {
        if (from > to) throw this.fault('ascending ranges', this.source);
        parts.push([[from, to]]);
      }
    }
    const points = union(...parts);
    return isNegative ? complement(points) : points;
  }

  private member(): CodePoints {
    const letter = this.next();
    return letter === '\\' ? this.escape(true) : single(letter);
  }

  private escape(isInClass: boolean): CodePoints {
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
        return this.property(letter);
      case 'x':
        return code(this.hex(2));
      case 'u':
        return code(this.unicode());
      case 'c':
        return code(required(this.next().codePointAt(0)) % 32);
      case 'b':
        if (isInClass) return code(8);
    }
    if (/[a-zA-Z0-9]/.test(letter)) {
      throw this.fault('escapes without backreferences and boundaries', `\\${letter}`);
    }
    return single(letter);
  }

  private property(letter: string): CodePoints {
    if (!this.takes('{')) throw this.fault(`\\${letter}{NAME}`, `\\${letter}`);
    let name = '';
    for (let next = this.next(); next !== '}'; next = this.next()) name += next;
    return property(this.op, `\\${letter}{${name}}`);
  }

  private unicode(): number {
    if (!this.takes('{')) {
      const high = this.hex(4);
      const isPair = high >= 0xd800 && high <= 0xdbff && this.peek() === '\\';
      if (!isPair || this.peek(1) !== 'u') return high;
      this.at += 2;
      return String.fromCharCode(high, this.hex(4)).codePointAt(0) ?? high;
    }
    let digits = '';
    for (let next = this.next(); next !== '}'; next = this.next()) digits += next;
    const found = Number.parseInt(digits, 16);
    if (/^[\da-f]+$/i.test(digits) && found <= LAST) return found;
    throw this.fault('a code point', `\\u{${digits}}`);
  }

  private hex(count: number): number {
    const digits = this.letters.slice(this.at, this.at + count).join('');
    if (digits.length !== count || !/^[\da-f]+$/i.test(digits)) {
      throw this.fault(`${count} hexadecimal digits`, digits);
    }
    this.at += count;
    return Number.parseInt(digits, 16);
  }

  private peek(ahead = 0): string | undefined {
    return this.letters[this.at + ahead];
  }

  private next(): string {
    const letter = this.letters[this.at++];
    if (letter !== undefined) return letter;
    throw this.fault('a whole pattern', `${this.source}, which ends too early`);
  }

  private takes(letter: string): boolean {
    if (this.peek() !== letter) return false;
    this.at++;
    return true;
  }

  private fault(expected: string, got: string): Error {
    return argumentError(this.op, expected, got.slice(0, 80));
  }
}

const code = (point: number): CodePoints => [[point, point]];
const single = (letter: string): CodePoints => code(required(letter.codePointAt(0)));

function oneOf(points: CodePoints): number | null {
  const [range] = points;
  return points.length === 1 && range && range[0] === range[1] ? range[0] : null;
}

function hasEdge(tree: Tree): boolean {
  if (tree.kind === 'repeat') return hasEdge(tree.part);
  if (tree.kind === 'seq' || tree.kind === 'any') return tree.parts.some(hasEdge);
  return tree.kind !== 'set';
}

/** How a pattern becomes a node. */
export interface PatternOptions {
  /** The place in errors. */
  op: string;
  /** One character of a set, as the text spells it. */
  character: (points: CodePoints) => Node;
  /** True if a match may begin and end inside the text, as in schemas. */
  isSearch: boolean;
}

/** Texts that a pattern matches. Throws DS_ARGUMENT with the construct that is not supported. */
export function patternNode(to: Description, source: string, options: PatternOptions): Node {
  const { op, character, isSearch } = options;
  const tree = new PatternReader(op, source).read();
  const around = isSearch ? to.star(character([[0, LAST]])) : to.epsilon;
  const made = new Map<string, Node>();
  const set = (points: readonly Range[]): Node => {
    const key = points.join(' ');
    const known = made.get(key);
    if (known !== undefined) return known;
    const node = character(intersection(points, [[0, LAST]]));
    made.set(key, node);
    return node;
  };
  /** `left` and `right`: the part is the first or last one of the pattern. */
  const emit = (part: Tree, left: boolean, right: boolean): Node => {
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
