// Builds the serialized grammar that csrc/grammar/program.h reads. Equal nodes share one number.
import { DsError } from '../../errors.js';
import { required } from '../../runtime/required.js';

/** The number of a node. */
export type Node = number & { readonly node?: true };

/** Operations in the order of csrc/grammar/expression.h. */
const OPS = [
  'empty',
  'epsilon',
  'bytes',
  'seq',
  'any',
  'all',
  'without',
  'repeat',
  'call',
  'ref',
] as const;
type Op = (typeof OPS)[number];

const VERSION = 1;
const SET_WORDS = 8;
const UNBOUNDED = -1;
/** Maximum number of words, as in csrc/grammar/limits.h. */
const MAX_WORDS = 2 ** 22;

/** Collects the nodes, byte sets and rules of one grammar. */
export class GrammarBuilder {
  private readonly nodes: number[][] = [];
  private readonly numbers = new Map<string, Node>();
  private readonly sets: Uint32Array[] = [];
  private readonly setNumbers = new Map<string, number>();
  private readonly bodies: (Node | null)[] = [];
  private readonly characters = new Set<Node>();
  private readonly literals = new Map<number, Node>();
  private words = 0;

  /** Matches no text. */
  readonly empty = this.node('empty', []);
  /** Matches the empty text. */
  readonly epsilon = this.node('epsilon', []);

  /** Returns a node that matches one byte of the ranges, both ends included. */
  bytes(...ranges: readonly (readonly [first: number, last: number])[]): Node {
    const set = new Uint32Array(SET_WORDS);
    for (const [first, last] of ranges) {
      for (let byte = first; byte <= last; ++byte) {
        set[byte >> 5] = required(set[byte >> 5]) | (1 << (byte & 31));
      }
    }
    const key = set.join();
    let number = this.setNumbers.get(key);
    if (number === undefined) {
      number = this.sets.push(set) - 1;
      this.setNumbers.set(key, number);
    }
    return this.node('bytes', [number]);
  }

  /** Returns a node that matches the UTF-8 bytes of `text`. */
  text(text: string): Node {
    return this.seq(...Array.from(Buffer.from(text), (byte) => this.byteNode(byte)));
  }

  private byteNode(byte: number): Node {
    const existing = this.literals.get(byte);
    if (existing !== undefined) return existing;
    const created = this.bytes([byte, byte]);
    this.literals.set(byte, created);
    return created;
  }

  seq(...parts: readonly Node[]): Node {
    if (parts.includes(this.empty)) return this.empty;
    const nonEmpty = parts.filter((part) => part !== this.epsilon);
    if (nonEmpty.length === 0) return this.epsilon;
    return nonEmpty.length === 1 ? required(nonEmpty[0]) : this.node('seq', nonEmpty);
  }

  any(...parts: readonly Node[]): Node {
    const distinct = [...new Set(parts)].filter((part) => part !== this.empty);
    if (distinct.length === 0) return this.empty;
    return distinct.length === 1 ? required(distinct[0]) : this.node('any', distinct);
  }

  /** Returns a node that matches texts that every part matches. The parts must not call rules. */
  all(...parts: readonly Node[]): Node {
    const distinct = [...new Set(parts)];
    return distinct.length === 1 ? required(distinct[0]) : this.node('all', distinct);
  }

  /** Returns a node that matches texts that `part` does not match. `part` must not call rules. */
  without(part: Node): Node {
    return this.node('without', [part]);
  }

  /** Returns a node that repeats `part`. `max` is Infinity for no limit. */
  repeat(part: Node, min: number, max: number): Node {
    if (min > max) return this.empty;
    if (max === 0) return this.epsilon;
    if (min === 1 && max === 1) return part;
    return this.node('repeat', [part, min, max === Number.POSITIVE_INFINITY ? UNBOUNDED : max]);
  }

  star = (part: Node): Node => this.repeat(part, 0, Number.POSITIVE_INFINITY);
  optional = (part: Node): Node => this.any(this.epsilon, part);

  /** Returns a node that matches one of `texts`. Texts with a common prefix share its nodes. */
  texts(texts: readonly string[]): Node {
    return this.branch(
      texts.map((text) => Buffer.from(text)),
      0,
    );
  }

  private branch(texts: readonly Uint8Array[], at: number): Node {
    const [only] = texts;
    if (only && texts.length === 1) {
      return this.seq(...Array.from(only.subarray(at), (byte) => this.byteNode(byte)));
    }
    let common = at;
    while (only && common < only.length && texts.every((text) => text[common] === only[common])) {
      common++;
    }
    const head = only ? [...only.subarray(at, common)].map((byte) => this.byteNode(byte)) : [];
    const groups = new Map<number, Uint8Array[]>();
    const parts: Node[] = [];
    for (const text of texts) {
      const byte = text[common];
      if (byte === undefined) parts.push(this.epsilon);
      else groups.set(byte, [...(groups.get(byte) ?? []), text]);
    }
    for (const group of groups.values()) parts.push(this.branch(group, common));
    return this.seq(...head, this.any(...parts));
  }

  /** Reserves a rule and returns its number. define() sets its body. */
  rule(): number {
    return this.bodies.push(null) - 1;
  }

  define(rule: number, body: Node): void {
    this.bodies[rule] = body;
  }

  /**
   * Returns a node that calls a rule on a new stack frame. A rule may call itself after at least
   * one byte.
   */
  call(rule: number): Node {
    return this.node('call', [rule]);
  }

  /**
   * Returns a node that continues with a rule in the same stack frame, as automata need. A rule may
   * refer to itself at its end.
   */
  ref(rule: number): Node {
    return this.node('ref', [rule]);
  }

  /** Defines a new rule with this body, and returns a node that calls it. */
  callNewRule(body: Node): Node {
    const rule = this.rule();
    this.define(rule, body);
    return this.call(rule);
  }

  /** Marks a node as one character of a string (csrc/grammar/program.h). */
  markCharacter(node: Node): Node {
    this.characters.add(node);
    return node;
  }

  /** Returns the serialized grammar, which starts with the node `start`. */
  finish(start: Node): Int32Array<ArrayBuffer> {
    const first = this.rule();
    this.define(first, start);
    const { bodies, sets, nodes, characters } = this;
    return Int32Array.from([
      VERSION,
      bodies.length,
      sets.length,
      nodes.length,
      first,
      characters.size,
      ...sets.flatMap((set) => [...set].map((word) => word | 0)),
      ...nodes.flat(),
      ...bodies.map((body) => required(body)),
      ...characters,
    ]);
  }

  private node(op: Op, values: readonly number[]): Node {
    const key = `${op} ${values.join(' ')}`;
    const existing = this.numbers.get(key);
    if (existing !== undefined) return existing;
    this.words += values.length + 2;
    if (this.words > MAX_WORDS) throw tooLargeError(`${MAX_WORDS} words`);
    const number = this.nodes.push([OPS.indexOf(op), values.length, ...values]) - 1;
    this.numbers.set(key, number);
    return number;
  }
}

/** The format exceeds a limit. */
export function tooLargeError(bound: string): DsError {
  const hint = 'Use fewer alternatives, or smaller repetition counts.';
  const expected = `a format of at most ${bound}`;
  return new DsError({ code: 'DS_LIMIT', op: 'format', expected, got: 'a larger one', hint });
}
