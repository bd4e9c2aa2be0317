// Parses a pattern into its syntax tree.
import { required } from '../required.js';
import { foldCase, LOOSE_WORD, NEWLINE, not, single, WORD } from './char-set.js';
import { type Dialect, readClass, readEscape } from './escapes.js';
import {
  alt,
  cat,
  dot,
  LAST_LINE_END,
  LINE_BREAK,
  LINE_END,
  LINE_START,
  look,
  type Node,
  possessive,
  setNode,
  TEXT_END,
  TEXT_START,
  wordBorder,
} from './nodes.js';
import { Reader } from './reader.js';

/** Flags that apply at a position of a pattern. */
interface Flags {
  readonly ignoresCase: boolean;
  /** A dot matches newlines. */
  readonly dotsAll: boolean;
  /** Whether "^" and "$" match at lines. Oniguruma's always do. */
  readonly multiline: boolean;
}

const DEEPEST = 200;
/** Larger counts make programs that exceed the limit in any case. */
const LARGEST_COUNT = 100_000;
const COUNT = /\{(?:(\d{1,9})(?:(,)(\d{0,9}))?|,(\d{1,9}))\}/y;

/** Throws RegexFault for syntax errors and unsupported constructs. */
export function parsePattern(text: string, dialect: Dialect, ignoresCase: boolean): Node {
  return new Parser(text, dialect).parse({
    ignoresCase,
    dotsAll: false,
    multiline: dialect === 'oniguruma',
  });
}

class Parser {
  private readonly reader: Reader;
  private depth = 0;

  constructor(
    text: string,
    private readonly dialect: Dialect,
  ) {
    this.reader = new Reader(text);
  }

  parse(flags: Flags): Node {
    const node = this.alternatives(flags);
    if (!this.reader.isAtEnd) throw this.reader.fault('unexpected ")"');
    return node;
  }

  private alternatives(outerFlags: Flags): Node {
    let flags = outerFlags;
    const branches: Node[] = [];
    let items: Node[] = [];
    for (;;) {
      if (this.reader.isAtEnd || this.reader.peek() === ')') break;
      if (this.reader.skip('|')) {
        branches.push(cat(items));
        items = [];
        continue;
      }
      const changed = this.bareFlags(flags);
      if (changed !== null) {
        flags = changed;
        if (this.dialect === 'python') continue;
        // In Oniguruma, a(?i)b|c is a(?i:b|c).
        items.push(this.alternatives(flags));
        break;
      }
      const atom = this.atom(flags);
      if (atom !== null) items.push(this.readRepeats(atom));
    }
    branches.push(cat(items));
    return alt(branches);
  }

  /** Parses the flags of "(?i)", which apply up to the end of the group. */
  private bareFlags(flags: Flags): Flags | null {
    const match = this.reader.take(/\(\?([a-zA-Z]*)(?:-([a-zA-Z]+))?\)/y);
    return match && this.withFlags(flags, match[1] ?? '', match[2] ?? '');
  }

  private withFlags(flags: Flags, on: string, off: string): Flags {
    const newFlags = { ...flags };
    for (const [letters, value] of [
      [on, true],
      [off, false],
    ] as const) {
      for (const letter of letters) {
        const isDotAll = letter === (this.dialect === 'python' ? 's' : 'm');
        if (letter === 'i') newFlags.ignoresCase = value;
        else if (isDotAll) newFlags.dotsAll = value;
        else if (letter === 'm') newFlags.multiline = value;
        else if (letter !== 'u') throw this.reader.fault(`the flag "${letter}" is not supported`);
      }
    }
    return newFlags;
  }

  /** Parses one atom; returns null for a comment. */
  private atom(flags: Flags): Node | null {
    const { reader } = this;
    const start = reader.at;
    const letter = reader.next();
    switch (letter) {
      case '(':
        return this.group(flags, start);
      case '[':
        return setNode(readClass(reader, { ...flags, dialect: this.dialect }));
      case '.':
        return dot(flags.dotsAll);
      case '^':
        return flags.multiline ? LINE_START : TEXT_START;
      case '$':
        return flags.multiline ? LINE_END : LAST_LINE_END;
      case '\\':
        return this.escape(flags);
      case '*':
      case '+':
      case '?':
        throw reader.fault(`"${letter}" has nothing to repeat`, start);
    }
    return this.letter(required(letter.codePointAt(0)), flags);
  }

  private letter(code: number, { ignoresCase }: Flags): Node {
    return setNode(ignoresCase ? foldCase(single(code)) : single(code));
  }

  private escape(flags: Flags): Node {
    const { reader } = this;
    const start = reader.at - 1;
    if (this.dialect === 'oniguruma') {
      if (reader.skip('w')) return setNode(LOOSE_WORD);
      if (reader.skip('W')) return setNode(not(LOOSE_WORD));
      if (reader.skip('R')) return LINE_BREAK;
    }
    const parsed = readEscape(reader, { ...flags, dialect: this.dialect });
    if (typeof parsed === 'number') return this.letter(parsed, flags);
    if (parsed !== null) return setNode(flags.ignoresCase ? foldCase(parsed) : parsed);
    const letter = reader.next();
    switch (letter) {
      case 'b':
      case 'B':
        return wordBorder(this.dialect === 'python' ? WORD : LOOSE_WORD, letter === 'b');
      case 'A':
        return TEXT_START;
      case 'z':
        return TEXT_END;
      case 'Z':
        return this.dialect === 'python' ? TEXT_END : LAST_LINE_END;
      case 'N':
      case 'O':
        if (this.dialect === 'oniguruma') return letter === 'N' ? setNode(not(NEWLINE)) : dot(true);
    }
    const isKnown = /^[A-Za-z0-9]?$/.test(letter);
    const isPlain = this.dialect === 'oniguruma' && /^[A-Za-z]$/.test(letter);
    if (isKnown && (!isPlain || /^[GKXkgyYCMcux]$/.test(letter))) {
      throw reader.fault(`\\${letter} is not supported`, start);
    }
    return this.letter(required(letter.codePointAt(0)), flags);
  }

  private group(flags: Flags, start: number): Node | null {
    const { reader } = this;
    if (reader.take(/\?#[^)]*\)/y)) return null;
    if (++this.depth > DEEPEST) throw reader.fault('groups nest too deeply', start);
    const wrap = this.groupKind(start);
    const flagged = reader.take(/\?([a-zA-Z]*)(?:-([a-zA-Z]+))?:/y);
    const inner = flagged ? this.withFlags(flags, flagged[1] ?? '', flagged[2] ?? '') : flags;
    if (flagged === null && wrap === null && reader.peek() === '?') {
      throw reader.fault(
        `the group "(${reader.text.slice(reader.at, reader.at + 3)}" is not supported`,
        start,
      );
    }
    const node = this.alternatives(inner);
    if (!reader.skip(')')) throw reader.fault('expected ")" for the "("', start);
    this.depth--;
    return wrap === null ? node : wrap(node);
  }

  /**
   * Reads the opening of a lookaround, an atomic or a named group. Returns a function that wraps
   * the content; null for other groups.
   */
  private groupKind(start: number): ((node: Node) => Node) | null {
    const { reader } = this;
    for (const [opening, isAhead, isNegative] of [
      ['?=', true, false],
      ['?!', true, true],
      ['?<=', false, false],
      ['?<!', false, true],
    ] as const) {
      if (reader.skip(opening)) return (node) => look(isAhead, isNegative, node);
    }
    if (reader.skip('?>')) return (node) => this.atomic(node, start);
    return reader.take(/\?P?<\w+>|\?'\w+'/y) && ((node) => node);
  }

  private atomic(node: Node, start: number): Node {
    if (node.kind === 'set') return node;
    const { kind } = node;
    const body =
      kind === 'repeat' && !node.isLazy ? possessive(node.node, node.min, node.max) : null;
    if (body !== null) return body;
    throw this.reader.fault(
      'atomic groups of more than one repeated class are not supported',
      start,
    );
  }

  private readRepeats(atom: Node): Node {
    const { reader } = this;
    let node = atom;
    for (;;) {
      const start = reader.at;
      const count = this.count();
      if (count === null) return node;
      const [min, max, isBraced] = count;
      const isLazy = reader.skip('?');
      const isPossessive =
        !isLazy && !(isBraced && this.dialect === 'oniguruma') && reader.skip('+');
      if (isLazy && isBraced && min === max && this.dialect === 'oniguruma') {
        // Oniguruma reads a{2}? as (?:a{2})?.
        const inner: Node = { kind: 'repeat', node, min, max, isLazy: false };
        node = { kind: 'repeat', node: inner, min: 0, max: 1, isLazy: false };
        continue;
      }
      if (!isPossessive) {
        node = { kind: 'repeat', node, min, max, isLazy };
        continue;
      }
      const own = possessive(node, min, max);
      if (own === null) {
        throw reader.fault(
          'possessive repetitions of more than one class are not supported',
          start,
        );
      }
      node = own;
    }
  }

  private count(): [min: number, max: number, isBraced: boolean] | null {
    const { reader } = this;
    const maximum = Number.POSITIVE_INFINITY;
    if (reader.skip('*')) return [0, maximum, false];
    if (reader.skip('+')) return [1, maximum, false];
    if (reader.skip('?')) return [0, 1, false];
    const start = reader.at;
    const match = reader.take(COUNT);
    if (match === null) return null;
    const [, minimum, comma, largest, only] = match;
    const min = Number(minimum ?? 0);
    const max =
      only !== undefined ? Number(only) : comma === undefined ? min : Number(largest || maximum);
    if (max < min) throw reader.fault('expected a count in ascending order', start);
    const finite = max === maximum ? min : max;
    if (finite > LARGEST_COUNT) throw reader.fault(`expected counts up to ${LARGEST_COUNT}`, start);
    return [min, max, true];
  }
}
