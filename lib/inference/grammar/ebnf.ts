// Parses grammars in llama.cpp's notation (GBNF): rules of literals, character classes and
// repetitions.
import { argumentError } from '../../runtime/input-errors.js';
import { required } from '../../runtime/required.js';
import { type CodePoints, complement, type Range, union, utf8Node } from './characters.js';
import type { GrammarBuilder, Node } from './description.js';

const OP = 'format grammar';
const MAX_RULES = 10_000;
const MAX_NESTING = 200;
const MAX_REPEATS = 100_000;
const NAME = /^[a-zA-Z][a-zA-Z0-9_-]*/;
const ESCAPES: Readonly<Record<string, number>> = { n: 10, r: 13, t: 9, '\\': 92, '"': 34 };

/** A rule during parsing. */
interface Rule {
  readonly number: number;
  isDefined: boolean;
  /** Whether the rule may match the empty text. */
  isNullable: boolean;
  /** The beginning of its body; empty before its definition. */
  readonly begins: RuleStart[];
}

/** The beginning of a part of a rule, to detect left recursion. */
type RuleStart =
  | { readonly kind: 'text' | 'empty' }
  | { readonly kind: 'rule'; readonly name: string }
  | { readonly kind: 'seq' | 'any'; readonly parts: readonly RuleStart[] };

interface ParsedPart {
  readonly node: Node;
  readonly begin: RuleStart;
}

class GrammarReader {
  private position = 0;
  private nesting = 0;
  private readonly rules = new Map<string, Rule>();

  constructor(
    private readonly to: GrammarBuilder,
    private readonly source: string,
  ) {}

  read(): Node {
    for (this.skipSpace(true); this.position < this.source.length; this.skipSpace(true))
      this.readDefinition();
    for (const [name, { isDefined }] of this.rules) {
      if (!isDefined) throw argumentError(`${OP} ${name}`, 'a definition of the rule', 'none');
    }
    const root = this.rules.get('root');
    if (!root)
      throw argumentError(OP, 'a rule "root"', [...this.rules.keys()].slice(0, 8).join(', '));
    this.requireProgress();
    return this.to.call(root.number);
  }

  private readDefinition(): void {
    const name = this.readName();
    this.skipSpace(false);
    this.expect('::=');
    const rule = this.getRule(name);
    if (rule.isDefined) throw this.syntaxError('one definition of each rule', name);
    rule.isDefined = true;
    this.skipSpace(true);
    const { node, begin } = this.readAlternatives(false);
    this.to.define(rule.number, node);
    rule.begins.push(begin);
  }

  private getRule(name: string): Rule {
    const existing = this.rules.get(name);
    if (existing) return existing;
    if (this.rules.size >= MAX_RULES) throw this.syntaxError(`at most ${MAX_RULES} rules`, 'more');
    const rule = { number: this.to.rule(), isDefined: false, isNullable: false, begins: [] };
    this.rules.set(name, rule);
    return rule;
  }

  /** `isInside`: within parentheses, where line breaks do not end the rule. */
  private readAlternatives(isInside: boolean): ParsedPart {
    if (++this.nesting > MAX_NESTING)
      throw this.syntaxError(`at most ${MAX_NESTING} groups`, 'more');
    const parts = [this.readSequence(isInside)];
    while (this.take('|')) {
      this.skipSpace(true);
      parts.push(this.readSequence(isInside));
    }
    this.nesting--;
    return {
      node: this.to.any(...parts.map(({ node }) => node)),
      begin: { kind: 'any', parts: parts.map(({ begin }) => begin) },
    };
  }

  private readSequence(isInside: boolean): ParsedPart {
    const parts: ParsedPart[] = [];
    for (let part = this.readPart(isInside); part; part = this.readPart(isInside)) parts.push(part);
    return {
      node: this.to.seq(...parts.map(({ node }) => node)),
      begin: { kind: 'seq', parts: parts.map(({ begin }) => begin) },
    };
  }

  private readPart(isInside: boolean): ParsedPart | null {
    const atom = this.readAtom();
    if (!atom) return null;
    const repeated = this.readRepeat(atom);
    this.skipSpace(isInside);
    // A rule ends at the end of a line, unless the next line starts with an alternative.
    if (!isInside) this.continueLine();
    return repeated;
  }

  private continueLine(): void {
    const [lines = ''] =
      /^(\s|#[^\n]*(\n|$))*/.exec(this.source.slice(this.position, this.position + 2000)) ?? [];
    if (lines !== '' && this.source[this.position + lines.length] === '|')
      this.position += lines.length;
  }

  private readAtom(): ParsedPart | null {
    const letter = this.source[this.position];
    const text: RuleStart = { kind: 'text' };
    if (letter === '"') {
      const literal = this.readLiteral();
      const begin: RuleStart = literal === '' ? { kind: 'empty' } : text;
      return { node: this.to.text(literal), begin };
    }
    if (letter === '[') return { node: utf8Node(this.to, this.readClass()), begin: text };
    if (letter === '.') {
      this.position++;
      return { node: utf8Node(this.to, [[0, 0x10ffff]]), begin: text };
    }
    if (letter === '(') {
      this.position++;
      this.skipSpace(true);
      const inner = this.readAlternatives(true);
      this.expect(')');
      return inner;
    }
    const [name] = NAME.exec(this.source.slice(this.position, this.position + 200)) ?? [];
    if (name === undefined) return null;
    const following = this.source.slice(
      this.position + name.length,
      this.position + name.length + 200,
    );
    if (/^[ \t]*::=/.test(following)) return null;
    this.position += name.length;
    return { node: this.to.call(this.getRule(name).number), begin: { kind: 'rule', name } };
  }

  private readRepeat({ node, begin }: ParsedPart): ParsedPart {
    const { to } = this;
    const counts = this.readCounts();
    if (!counts) return { node, begin };
    const [min, max] = counts;
    if (max < min || min > MAX_REPEATS || (max > MAX_REPEATS && max !== Infinity)) {
      throw this.syntaxError(`ascending counts up to ${MAX_REPEATS}`, `{${min},${max}}`);
    }
    const empty: RuleStart = { kind: 'empty' };
    const either: RuleStart = { kind: 'any', parts: [empty, begin] };
    return { node: to.repeat(node, min, max), begin: min === 0 ? either : begin };
  }

  private readCounts(): [number, number] | null {
    if (this.take('*')) return [0, Number.POSITIVE_INFINITY];
    if (this.take('+')) return [1, Number.POSITIVE_INFINITY];
    if (this.take('?')) return [0, 1];
    const following = this.source.slice(this.position, this.position + 40);
    const [match, min, comma, max] = /^\{\s*(\d+)\s*(,?)\s*(\d*)\s*\}/.exec(following) ?? [];
    if (match === undefined) return null;
    this.position += match.length;
    const end = max ? Number(max) : comma ? Number.POSITIVE_INFINITY : Number(min);
    return [Number(min), end];
  }

  private readLiteral(): string {
    this.position++;
    let text = '';
    while (!this.take('"')) text += String.fromCodePoint(this.readCharacter());
    return text;
  }

  private readClass(): CodePoints {
    this.position++;
    const isNegative = this.take('^');
    const ranges: Range[] = [];
    while (!this.take(']')) {
      const first = this.readCharacter();
      const isRange = this.source[this.position] === '-' && this.source[this.position + 1] !== ']';
      if (isRange) this.position++;
      const last = isRange ? this.readCharacter() : first;
      if (last < first) throw this.syntaxError('ascending ranges', String.fromCodePoint(last));
      ranges.push([first, last]);
    }
    return isNegative ? complement(ranges) : union(ranges);
  }

  private readCharacter(): number {
    const code = this.source.codePointAt(this.position);
    if (code === undefined)
      throw this.syntaxError('a whole literal or class', 'the end of the grammar');
    this.position += code > 0xffff ? 2 : 1;
    if (code !== 92) return code;
    const letter = this.source[this.position++] ?? '';
    const length = { x: 2, u: 4, U: 8 }[letter];
    if (length === undefined) {
      const escaped = ESCAPES[letter];
      if (escaped !== undefined) return escaped;
      if (letter !== '' && !/[a-zA-Z0-9]/.test(letter)) return required(letter.codePointAt(0));
      throw this.syntaxError('a known escape', `\\${letter}`);
    }
    const digits = this.source.slice(this.position, this.position + length);
    const codePoint = Number.parseInt(digits, 16);
    const isHex = digits.length === length && /^[\da-fA-F]+$/.test(digits);
    if (!isHex || codePoint > 0x10ffff)
      throw this.syntaxError('a code point', `\\${letter}${digits}`);
    this.position += length;
    return codePoint;
  }

  private readName(): string {
    const [name] = NAME.exec(this.source.slice(this.position, this.position + 200)) ?? [];
    if (name === undefined) throw this.syntaxError('the name of a rule', this.excerpt());
    this.position += name.length;
    return name;
  }

  private skipSpace(withLines: boolean): void {
    for (;;) {
      const letter = this.source[this.position];
      if (letter === ' ' || letter === '\t' || (withLines && /[\r\n]/.test(letter ?? '')))
        this.position++;
      else if (letter === '#') {
        const end = this.source.indexOf('\n', this.position);
        this.position = end < 0 ? this.source.length : end;
      } else return;
    }
  }

  private take(letter: string): boolean {
    if (this.source[this.position] !== letter) return false;
    this.position++;
    return true;
  }

  private expect(word: string): void {
    if (!this.source.startsWith(word, this.position)) throw this.syntaxError(word, this.excerpt());
    this.position += word.length;
  }

  private excerpt(): string {
    return this.source.slice(this.position, this.position + 40) || 'the end of the grammar';
  }

  private syntaxError(expected: string, got: string): Error {
    const line = this.source.slice(0, this.position).split('\n').length;
    return argumentError(`${OP} line ${line}`, expected, got);
  }

  /** Throws for left-recursive rules, whose expansion would not end. */
  private requireProgress(): void {
    const rules = [...this.rules];
    for (let changed = true; changed; ) {
      changed = false;
      for (const [, rule] of rules) {
        const is = rule.begins.some((begin) => this.isNullable(begin));
        changed ||= is !== rule.isNullable;
        rule.isNullable = is;
      }
    }
    const done = new Set<string>();
    for (const [name] of rules) this.visit(name, new Set(), done);
  }

  private visit(name: string, open: Set<string>, done: Set<string>): void {
    if (done.has(name)) return;
    if (open.has(name)) {
      const expected = 'rules that begin with some text before they repeat';
      throw argumentError(
        `${OP} ${name}`,
        expected,
        'left recursion',
        'Write a list as item (sep item)*.',
      );
    }
    open.add(name);
    if (open.size > 1000) throw argumentError(OP, 'at most 1000 nested rules', 'more');
    const first = new Set<string>();
    for (const begin of required(this.rules.get(name)).begins) this.collectFirsts(begin, first);
    for (const next of first) this.visit(next, open, done);
    open.delete(name);
    done.add(name);
  }

  private isNullable(begin: RuleStart): boolean {
    if (begin.kind === 'rule') return required(this.rules.get(begin.name)).isNullable;
    if (begin.kind === 'any') return begin.parts.some((part) => this.isNullable(part));
    if (begin.kind === 'seq') return begin.parts.every((part) => this.isNullable(part));
    return begin.kind === 'empty';
  }

  private collectFirsts(begin: RuleStart, into: Set<string>): void {
    if (begin.kind === 'rule') into.add(begin.name);
    if (begin.kind === 'any') for (const part of begin.parts) this.collectFirsts(part, into);
    if (begin.kind !== 'seq') return;
    for (const part of begin.parts) {
      this.collectFirsts(part, into);
      if (!this.isNullable(part)) return;
    }
  }
}

/** Returns a node that matches the rule "root". Throws DS_ARGUMENT with the line. */
export const ebnfNode = (to: GrammarBuilder, source: string): Node =>
  new GrammarReader(to, source).read();
