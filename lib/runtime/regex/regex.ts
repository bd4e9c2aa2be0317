// Regular expressions from files and configurations, matched in linear time.
import { required } from '../required.js';
import { Alphabet, EDGE } from './alphabet.js';
import { Automaton, type Meter } from './automaton.js';
import type { Dialect } from './escapes.js';
import { RegexFault } from './fault.js';
import { cat, TEXT_END } from './nodes.js';
import { parsePattern } from './parser.js';
import { compileNode, type Shared, TooLarge } from './program.js';

export interface RegexOptions {
  /** Default: "python". */
  dialect?: Dialect;
  ignoresCase?: boolean;
  /** Whether matches must end at the end of the text, as in Python's fullmatch(). */
  isWhole?: boolean;
}

/** The largest number of lookarounds of more than one character in a pattern. */
const MAX_LOOKS = 8;
/**
 * Steps that a search may take in any text, in addition to STEPS_PER_UNIT for each of its UTF-16
 * units.
 */
const FREE_STEPS = 10_000_000;
const STEPS_PER_UNIT = 100;

/** A text, with data that all searches in it share. */
interface Scan {
  readonly text: string;
  /** For each lookaround: 1 at the positions where it holds. */
  readonly looks: readonly Uint8Array[];
  readonly meter: Meter;
}

/**
 * A pattern without captures. Alternatives have Perl's priorities. A search takes time linear in
 * the text; it throws a RegexFault if it exceeds the bound.
 */
export class Regex {
  private readonly skipsAdjacent: boolean;
  private readonly shared: Shared = { sets: [], numbers: new Map(), looks: [] };
  private readonly alphabet: Alphabet;
  private readonly matcher: Automaton;
  private readonly lookers: Automaton[] = [];
  /** Finds the positions where a match starts. */
  private readonly starter: Automaton;

  /** Throws RegexFault for syntax errors and unsupported constructs. */
  constructor(
    readonly source: string,
    { dialect = 'python', ignoresCase = false, isWhole = false }: RegexOptions = {},
  ) {
    this.skipsAdjacent = dialect === 'oniguruma';
    const parsed = parsePattern(source, dialect, ignoresCase);
    const node = isWhole ? cat([parsed, TEXT_END]) : parsed;
    try {
      const program = compileNode(node, this.shared, false);
      const reversed = compileNode(node, this.shared, true);
      const lookPrograms = this.lookPrograms();
      const { sets, looks } = this.shared;
      this.alphabet = new Alphabet(sets);
      const once = { isReversed: false, marksAll: false };
      this.matcher = new Automaton(program, this.alphabet, once, looks.length);
      const all = { isReversed: true, marksAll: true };
      this.starter = new Automaton(reversed, this.alphabet, all, looks.length);
      this.lookers = lookPrograms.map(
        ({ program: ownProgram, isAhead }) =>
          new Automaton(
            ownProgram,
            this.alphabet,
            { isReversed: isAhead, marksAll: true },
            looks.length,
          ),
      );
    } catch (error) {
      throw error instanceof TooLarge ? new RegexFault(error.message, source) : error;
    }
  }

  private lookPrograms() {
    const { looks } = this.shared;
    const programs = [];
    // Programs of lookarounds append their inner lookarounds to the list.
    for (let i = 0; i < looks.length; ++i) {
      const { node, isAhead } = required(looks[i]);
      programs.push({ program: compileNode(node, this.shared, isAhead), isAhead });
      if (looks.length > MAX_LOOKS) {
        throw new RegexFault(`expected at most ${MAX_LOOKS} lookarounds`, this.source);
      }
    }
    return programs;
  }

  /** Returns whether the pattern matches anywhere in a text. */
  test(text: string): boolean {
    return this.bounds(text, 1).length > 0;
  }

  /** Returns whether the pattern matches from the start of a text. */
  matchesStart(text: string): boolean {
    return this.endOf(this.scan(text), 0) >= 0;
  }

  /** Returns starts and ends of the matches that do not overlap: [start, end, start, end, ...]. */
  bounds(text: string, max = Number.POSITIVE_INFINITY): number[] {
    const scan = this.scan(text);
    const bounds: number[] = [];
    let failed = 0;
    let starts: Uint8Array | null = null;
    for (let at = 0; at <= text.length; ) {
      const end = starts === null || starts[at] === 1 ? this.endOf(scan, at) : DEAD;
      if (end < 0) {
        failed -= end;
        at += widthAt(text, at);
        // Many attempts that fail late take quadratic time: one pass from the end finds all starts.
        if (starts === null && failed > 4 * text.length + 1000) starts = this.startsIn(scan);
        continue;
      }
      // The Rust crate onig skips an empty match at the end of the previous match.
      const isLeftOut = this.skipsAdjacent && end === at && bounds.at(-1) === at;
      if (!isLeftOut) bounds.push(at, end);
      if (bounds.length >= 2 * max) break;
      // After an empty match the search continues one character later.
      at = end > at ? end : at + widthAt(text, at);
    }
    return bounds;
  }

  private scan(text: string): Scan {
    const meter = meterOf(text.length, this.source);
    const looks: Uint8Array[] = [];
    // Inner lookarounds are later in the list and are evaluated first.
    for (let i = this.lookers.length - 1; i >= 0; --i) {
      const { isAhead } = required(this.shared.looks[i]);
      const scan = { text, looks, meter };
      looks[i] = marks(required(this.lookers[i]), this.alphabet, scan, isAhead);
    }
    return { text, looks, meter };
  }

  private startsIn(scan: Scan): Uint8Array {
    return marks(this.starter, this.alphabet, scan, true);
  }

  /**
   * Returns the end of the match that starts at `start`; without a match, minus the number of
   * steps.
   */
  private endOf({ text, looks, meter }: Scan, start: number): number {
    const { alphabet, matcher } = this;
    let at = start;
    let end = DEAD;
    let state = matcher.start(letterBefore(alphabet, text, at));
    let steps = 1;
    for (;;) {
      const isEnd = at >= text.length;
      let code = 0;
      if (!isEnd) {
        code = text.charCodeAt(at);
        if (code >= 0xd800 && code < 0xdc00) code = required(text.codePointAt(at));
      }
      const coming = isEnd ? EDGE : alphabet.letterOf(code);
      const lookarounds = looks.length > 0 ? lookaroundsAt(looks, at) : 0;
      const result = matcher.step(state, coming, lookarounds, meter);
      if ((result & 1) === 1) end = at;
      state = result >> 1;
      if (state < 0) break;
      at += code > 0xffff ? 2 : 1;
      steps++;
    }
    meter.spend(steps);
    return end >= 0 ? end : -steps;
  }
}

const DEAD = -1;

/** Marks the positions where matches end; where they start, if the automaton reads from the end. */
function marks(
  automaton: Automaton,
  alphabet: Alphabet,
  scan: Scan,
  isReversed: boolean,
): Uint8Array {
  const { text, looks, meter } = scan;
  const marked = new Uint8Array(text.length + 1);
  let at = isReversed ? text.length : 0;
  let state = automaton.start(EDGE);
  let steps = 0;
  for (;;) {
    const coming = isReversed ? letterBefore(alphabet, text, at) : letterAt(alphabet, text, at);
    const result = automaton.step(state, coming, lookaroundsAt(looks, at), meter);
    if ((result & 1) === 1) marked[at] = 1;
    state = result >> 1;
    if (coming === EDGE) break;
    at += isReversed ? -widthBefore(text, at) : widthAt(text, at);
    steps++;
  }
  meter.spend(steps);
  return marked;
}

function meterOf(length: number, source: string): Meter {
  let left = FREE_STEPS + STEPS_PER_UNIT * length;
  return {
    spend(steps) {
      left -= steps;
      if (left >= 0) return;
      throw new RegexFault(`a search in ${length} characters takes too many steps`, source);
    },
  };
}

function lookaroundsAt(looks: readonly Uint8Array[], at: number): number {
  let lookarounds = 0;
  for (let i = 0; i < looks.length; ++i) lookarounds |= (looks[i]?.[at] ?? 0) << i;
  return lookarounds;
}

function widthAt(text: string, at: number): number {
  return (text.codePointAt(at) ?? 0) > 0xffff ? 2 : 1;
}

function widthBefore(text: string, at: number): number {
  return at >= 2 && required(text.codePointAt(at - 2)) > 0xffff ? 2 : 1;
}

function letterAt(alphabet: Alphabet, text: string, at: number): number {
  return at >= text.length ? EDGE : alphabet.letterOf(required(text.codePointAt(at)));
}

function letterBefore(alphabet: Alphabet, text: string, at: number): number {
  return at <= 0 ? EDGE : alphabet.letterOf(required(text.codePointAt(at - widthBefore(text, at))));
}
