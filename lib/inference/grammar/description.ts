// Writes the description of a grammar for csrc/grammar/program.h. Equal nodes share one number.
import { DsError } from '../../errors.js';
import { required } from '../../runtime/required.js';

/** The number of a node. */
export type Node = number & { readonly node?: true };

/** Operations in the order of csrc/grammar/expression.h. */
const OPS = ['empty', 'epsilon', 'bytes', 'seq', 'any', 'all', 'without', 'repeat', 'call', 'ref'];
type Op =
  | 'empty'
  | 'epsilon'
  | 'bytes'
  | 'seq'
  | 'any'
  | 'all'
  | 'without'
  | 'repeat'
  | 'call'
  | 'ref';

const VERSION = 1;
const SET_WORDS = 8;
const UNBOUNDED = -1;
/** Maximum number of words of a description, as in csrc/grammar/limits.h. */
const MAX_WORDS = 2 ** 22;

/** The nodes, byte sets and rules of one grammar. */
export class Description {
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

  /** The UTF-8 bytes of a text. */
  text(text: string): Node {
    return this.seq(...Array.from(Buffer.from(text), (byte) => this.byte(byte)));
  }

  private byte(byte: number): Node {
    const known = this.literals.get(byte);
    if (known !== undefined) return known;
    const made = this.bytes([byte, byte]);
    this.literals.set(byte, made);
    return made;
  }

  seq(...parts: readonly Node[]): Node {
    if (parts.includes(this.empty)) return this.empty;
    const kept = parts.filter((part) => part !== this.epsilon);
    if (kept.length === 0) return this.epsilon;
    return kept.length === 1 ? required(kept[0]) : this.node('seq', kept);
  }

  any(...parts: readonly Node[]): Node {
    const kept = [...new Set(parts)].filter((part) => part !== this.empty);
    if (kept.length === 0) return this.empty;
    return kept.length === 1 ? required(kept[0]) : this.node('any', kept);
  }

  /** Texts that all parts match. The parts call no rules. */
  all(...parts: readonly Node[]): Node {
    const kept = [...new Set(parts)];
    return kept.length === 1 ? required(kept[0]) : this.node('all', kept);
  }

  /** Texts that `part` does not match. It calls no rules. */
  without(part: Node): Node {
    return this.node('without', [part]);
  }

  /** `max` is Infinity for no limit. */
  repeat(part: Node, min: number, max: number): Node {
    if (min > max) return this.empty;
    if (max === 0) return this.epsilon;
    if (min === 1 && max === 1) return part;
    return this.node('repeat', [part, min, max === Number.POSITIVE_INFINITY ? UNBOUNDED : max]);
  }

  star = (part: Node): Node => this.repeat(part, 0, Number.POSITIVE_INFINITY);
  optional = (part: Node): Node => this.any(this.epsilon, part);

  /** Returns a node that matches one of several texts; they share their common beginnings. */
  texts(texts: readonly string[]): Node {
    return this.branch(
      texts.map((text) => Buffer.from(text)),
      0,
    );
  }

  private branch(texts: readonly Uint8Array[], at: number): Node {
    const [only] = texts;
    if (only && texts.length === 1) {
      return this.seq(...Array.from(only.subarray(at), (byte) => this.byte(byte)));
    }
    let common = at;
    while (only && common < only.length && texts.every((text) => text[common] === only[common])) {
      common++;
    }
    const head = only ? [...only.subarray(at, common)].map((byte) => this.byte(byte)) : [];
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

  /** Returns the number of a new rule; define() gives it a body. */
  rule(): number {
    return this.bodies.push(null) - 1;
  }

  define(rule: number, body: Node): void {
    this.bodies[rule] = body;
  }

  /** A rule on a new frame of the stack: rules may call themselves after some bytes. */
  call(rule: number): Node {
    return this.node('call', [rule]);
  }

  /** A rule in the same frame, for automata: a rule may refer to itself at its end. */
  ref(rule: number): Node {
    return this.node('ref', [rule]);
  }

  /** Returns a call of a new rule with this body. */
  callNewRule(body: Node): Node {
    const rule = this.rule();
    this.define(rule, body);
    return this.call(rule);
  }

  /** Marks a character of strings: see csrc/grammar/program.h. */
  markCharacter(node: Node): Node {
    this.characters.add(node);
    return node;
  }

  /** Returns the words of the grammar that starts with `start`. */
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
    const known = this.numbers.get(key);
    if (known !== undefined) return known;
    this.words += values.length + 2;
    if (this.words > MAX_WORDS) throw tooLarge(`${MAX_WORDS} words`);
    const number = this.nodes.push([OPS.indexOf(op), values.length, ...values]) - 1;
    this.numbers.set(key, number);
    return number;
  }
}

/** The error of a format beyond a bound. */
export function tooLarge(bound: string): DsError {
  const hint = 'Use fewer alternatives, or smaller repetition counts.';
  const expected = `a format of at most ${bound}`;
  return new DsError({ code: 'DS_LIMIT', op: 'format', expected, got: 'a larger one', hint });
}
