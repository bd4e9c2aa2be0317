// Builds nodes for JSON arrays, objects and constants, with commas and whitespace.
import type { GrammarBuilder, Node } from './description.js';
import type { StringNodes } from './schema-text.js';

/** Maximum whitespace between two parts. Without a limit, some models write only whitespace. */
const MAX_SPACE = 8;

/** Rules of an array. */
interface ArrayRules {
  /** Nodes of the first items, by position. */
  readonly first: readonly Node[];
  /** Node of each later item. */
  readonly more: Node;
  readonly min: number;
  readonly max: number;
}

export class JsonLayout {
  /** Whitespace after brackets, commas and colons, and before closing brackets. */
  readonly space: Node;
  readonly comma: Node;
  readonly colon: Node;

  constructor(
    private readonly to: GrammarBuilder,
    private readonly texts: StringNodes,
  ) {
    const white = to.bytes([0x20, 0x20], [0x09, 0x0a], [0x0d, 0x0d]);
    this.space = to.repeat(white, 0, MAX_SPACE);
    this.comma = to.seq(to.text(','), this.space);
    this.colon = to.seq(to.text(':'), this.space);
  }

  array({ first, more, min, max }: ArrayRules): Node {
    const { to } = this;
    const count = Math.min(first.length, max);
    const laterItems = (from: number): Node => {
      const low = Math.max(0, min - from);
      const high = max - from;
      if (from > 0) return to.repeat(to.seq(this.comma, more), low, high);
      const tail = to.repeat(to.seq(this.comma, more), Math.max(0, low - 1), high - 1);
      const some = high > 0 ? to.seq(more, tail) : to.empty;
      return low === 0 ? to.optional(some) : some;
    };
    let tail = laterItems(count);
    for (let i = count - 1; i >= 0; --i) {
      const item = first[i] ?? to.empty;
      const itemNode = to.seq(i > 0 ? this.comma : to.epsilon, item, tail);
      tail = min <= i ? to.optional(itemNode) : itemNode;
    }
    return this.enclose('[', tail, ']');
  }

  /** Returns a node that matches an object with these members. */
  object(members: Node): Node {
    return this.enclose('{', members, '}');
  }

  private enclose(open: string, inner: Node, close: string): Node {
    const { to } = this;
    return to.seq(to.text(open), this.space, inner, this.space, to.text(close));
  }

  /** Returns a node that matches one JSON value, with whitespace. */
  constant(value: unknown): Node {
    const { to } = this;
    if (typeof value === 'string') return this.texts.constant(value);
    if (typeof value !== 'object' || value === null) return to.text(JSON.stringify(value));
    const isList = Array.isArray(value);
    const parts = isList
      ? value.map((item) => this.constant(item))
      : Object.entries(value).map(([name, item]) =>
          to.seq(this.texts.key(this.texts.name(name)), this.colon, this.constant(item)),
        );
    const joined = parts.flatMap((part, i) => (i > 0 ? [this.comma, part] : [part]));
    return this.enclose(isList ? '[' : '{', to.seq(...joined), isList ? ']' : '}');
  }
}
