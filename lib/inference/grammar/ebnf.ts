// Grammars in llama.cpp's notation (GBNF): rules of literals, character classes and repetitions.
import { argumentError } from '../../runtime/input-errors.js';
import { required } from '../../runtime/required.js';
import { type CodePoints, complement, type Range, union, utf8 } from './characters.js';
import type { Description, Node } from './description.js';

const OP = 'format grammar';
const MAX_RULES = 10_000;
const MAX_NESTING = 200;
const MAX_REPEATS = 100_000;
const NAME = /^[a-zA-Z][a-zA-Z0-9_-]*/;
const ESCAPES: Readonly<Record<string, number>> = { n: 10, r: 13, t: 9, '\\': 92, '"': 34 };

/** A rule while its grammar is read. */
interface Rule {
  readonly number: number;
  isDefined: boolean;
  /** Whether the rule may match the empty text. */
  isNullable: boolean;
  /** The beginning of its body; empty before its definition. */
  readonly begins: Begin[];
}

/** The beginning of a part of a rule. */
type Begin =
  | { readonly kind: 'text' | 'empty' }
  | { readonly kind: 'rule'; readonly name: string }
  | { readonly kind: 'seq' | 'any'; readonly parts: readonly Begin[] };

interface Part {
  readonly node: Node;
  readonly begin: Begin;
}

class GrammarReader {
  private at = 0;
  private nesting = 0;
  private readonly rules = new Map<string, Rule>();

  constructor(
    private readonly to: Description,
    private readonly source: string,
  ) {}

  read(): Node {
    for (this.space(true); this.at < this.source.length; this.space(true)) this.definition();
    for (const [name, { isDefined }] of this.rules) {
      if (!isDefined) throw argumentError(`${OP} ${name}`, 'a definition of the rule', 'none');
    }
    const root = this.rules.get('root');
    if (!root)
      throw argumentError(OP, 'a rule "root"', [...this.rules.keys()].slice(0, 8).join(', '));
    this.requireProgress();
    return this.to.call(root.number);
  }

  private definition(): void {
    const name = this.name();
    this.space(false);
    this.expect('::=');
    const rule = this.rule(name);
    if (rule.isDefined) throw this.fault('one definition of each rule', name);
    rule.isDefined = true;
    this.space(true);
    const { node, begin } = this.alternatives(false);
    this.to.define(rule.number, node);
    rule.begins.push(begin);
  }

  private rule(name: string): Rule {
    const known = this.rules.get(name);
    if (known) return known;
    if (this.rules.size >= MAX_RULES) throw this.fault(`at most ${MAX_RULES} rules`, 'more');
    const rule = { number: this.to.rule(), isDefined: false, isNullable: false, begins: [] };
    this.rules.set(name, rule);
    return rule;
  }

  private alternatives(isInside: boolean): Part {
    if (++this.nesting > MAX_NESTING) throw this.fault(`at most ${MAX_NESTING} groups`, 'more');
    const parts = [this.sequence(isInside)];
    while (this.takes('|')) {
      this.space(true);
      parts.push(this.sequence(isInside));
    }
    this.nesting--;
    return {
      node: this.to.any(...parts.map(({ node }) => node)),
      begin: { kind: 'any', parts: parts.map(({ begin }) => begin) },
    };
  }

  private sequence(isInside: boolean): Part {
    const parts: Part[] = [];
    for (let part = this.part(isInside); part; part = this.part(isInside)) parts.push(part);
    return {
      node: this.to.seq(...parts.map(({ node }) => node)),
      begin: { kind: 'seq', parts: parts.map(({ begin }) => begin) },
    };
  }

  private part(isInside: boolean): Part | null {
    const atom = this.atom();
    if (!atom) return null;
    const repeated = this.readRepeat(atom);
    this.space(isInside);
    // A rule ends at the end of a line, unless its next line begins with an alternative.
    if (!isInside) this.continueLine();
    return repeated;
  }

  private continueLine(): void {
    const [lines = ''] =
      /^(\s|#[^\n]*(\n|$))*/.exec(this.source.slice(this.at, this.at + 2000)) ?? [];
    if (lines !== '' && this.source[this.at + lines.length] === '|') this.at += lines.length;
  }

  private atom(): Part | null {
    const letter = this.source[this.at];
    const text: Begin = { kind: 'text' };
    if (letter === '"') {
      const literal = this.literal();
      const begin: Begin = literal === '' ? { kind: 'empty' } : text;
      return { node: this.to.text(literal), begin };
    }
    if (letter === '[') return { node: utf8(this.to, this.charClass()), begin: text };
    if (letter === '.') {
      this.at++;
      return { node: utf8(this.to, [[0, 0x10ffff]]), begin: text };
    }
    if (letter === '(') {
      this.at++;
      this.space(true);
      const inner = this.alternatives(true);
      this.expect(')');
      return inner;
    }
    const [name] = NAME.exec(this.source.slice(this.at, this.at + 200)) ?? [];
    if (name === undefined) return null;
    const rest = this.source.slice(this.at + name.length, this.at + name.length + 200);
    if (/^[ \t]*::=/.test(rest)) return null;
    this.at += name.length;
    return { node: this.to.call(this.rule(name).number), begin: { kind: 'rule', name } };
  }

  private readRepeat({ node, begin }: Part): Part {
    const { to } = this;
    const counts = this.counts();
    if (!counts) return { node, begin };
    const [min, max] = counts;
    if (max < min || min > MAX_REPEATS || (max > MAX_REPEATS && max !== Infinity)) {
      throw this.fault(`ascending counts up to ${MAX_REPEATS}`, `{${min},${max}}`);
    }
    const empty: Begin = { kind: 'empty' };
    const either: Begin = { kind: 'any', parts: [empty, begin] };
    return { node: to.repeat(node, min, max), begin: min === 0 ? either : begin };
  }

  private counts(): [number, number] | null {
    if (this.takes('*')) return [0, Number.POSITIVE_INFINITY];
    if (this.takes('+')) return [1, Number.POSITIVE_INFINITY];
    if (this.takes('?')) return [0, 1];
    const rest = this.source.slice(this.at, this.at + 40);
    const [whole, min, comma, max] = /^\{\s*(\d+)\s*(,?)\s*(\d*)\s*\}/.exec(rest) ?? [];
    if (whole === undefined) return null;
    this.at += whole.length;
    const end = max ? Number(max) : comma ? Number.POSITIVE_INFINITY : Number(min);
    return [Number(min), end];
  }

  private literal(): string {
    this.at++;
    let text = '';
    while (!this.takes('"')) text += String.fromCodePoint(this.character());
    return text;
  }

  private charClass(): CodePoints {
    this.at++;
    const isNegative = this.takes('^');
    const ranges: Range[] = [];
    while (!this.takes(']')) {
      const first = this.character();
      const isRange = this.source[this.at] === '-' && this.source[this.at + 1] !== ']';
      if (isRange) this.at++;
      const last = isRange ? this.character() : first;
      if (last < first) throw this.fault('ascending ranges', String.fromCodePoint(last));
      ranges.push([first, last]);
    }
    return isNegative ? complement(ranges) : union(ranges);
  }

  private character(): number {
    const code = this.source.codePointAt(this.at);
    if (code === undefined) throw this.fault('a whole literal or class', 'the end of the grammar');
    this.at += code > 0xffff ? 2 : 1;
    if (code !== 92) return code;
    const letter = this.source[this.at++] ?? '';
    const length = { x: 2, u: 4, U: 8 }[letter];
    if (length === undefined) {
      const known = ESCAPES[letter];
      if (known !== undefined) return known;
      if (letter !== '' && !/[a-zA-Z0-9]/.test(letter)) return required(letter.codePointAt(0));
      throw this.fault('a known escape', `\\${letter}`);
    }
    const digits = this.source.slice(this.at, this.at + length);
    const found = Number.parseInt(digits, 16);
    const isHex = digits.length === length && /^[\da-fA-F]+$/.test(digits);
    if (!isHex || found > 0x10ffff) throw this.fault('a code point', `\\${letter}${digits}`);
    this.at += length;
    return found;
  }

  private name(): string {
    const [name] = NAME.exec(this.source.slice(this.at, this.at + 200)) ?? [];
    if (name === undefined) throw this.fault('the name of a rule', this.rest());
    this.at += name.length;
    return name;
  }

  private space(withLines: boolean): void {
    for (;;) {
      const letter = this.source[this.at];
      if (letter === ' ' || letter === '\t' || (withLines && /[\r\n]/.test(letter ?? '')))
        this.at++;
      else if (letter === '#') {
        const end = this.source.indexOf('\n', this.at);
        this.at = end < 0 ? this.source.length : end;
      } else return;
    }
  }

  private takes(letter: string): boolean {
    if (this.source[this.at] !== letter) return false;
    this.at++;
    return true;
  }

  private expect(word: string): void {
    if (!this.source.startsWith(word, this.at)) throw this.fault(word, this.rest());
    this.at += word.length;
  }

  private rest(): string {
    return this.source.slice(this.at, this.at + 40) || 'the end of the grammar';
  }

  private fault(expected: string, got: string): Error {
    const line = this.source.slice(0, this.at).split('\n').length;
    return argumentError(`${OP} line ${line}`, expected, got);
  }

  /** Throws for rules that may begin with themselves: no text would end the search. */
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
    for (const begin of required(this.rules.get(name)).begins) this.firsts(begin, first);
    for (const next of first) this.visit(next, open, done);
    open.delete(name);
    done.add(name);
  }

  private isNullable(begin: Begin): boolean {
    if (begin.kind === 'rule') return required(this.rules.get(begin.name)).isNullable;
    if (begin.kind === 'any') return begin.parts.some((part) => this.isNullable(part));
    if (begin.kind === 'seq') return begin.parts.every((part) => this.isNullable(part));
    return begin.kind === 'empty';
  }

  private firsts(begin: Begin, into: Set<string>): void {
    if (begin.kind === 'rule') into.add(begin.name);
    if (begin.kind === 'any') for (const part of begin.parts) this.firsts(part, into);
    if (begin.kind !== 'seq') return;
    for (const part of begin.parts) {
      this.firsts(part, into);
      if (!this.isNullable(part)) return;
    }
  }
}

/** Texts of the rule "root". Throws DS_ARGUMENT with the line. */
export const ebnfNode = (to: Description, source: string): Node =>
  new GrammarReader(to, source).read();
