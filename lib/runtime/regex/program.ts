// Compiles a syntax tree to instructions of a Thompson automaton.
import type { CharSet } from './char-set.js';
import type { Lookaround, Node } from './nodes.js';

export type Instruction =
  | { readonly op: 'set'; readonly set: number; next: number }
  | { readonly op: 'split'; first: number; second: number }
  | { readonly op: 'side'; set: number; isAhead: boolean; isNegative: boolean; next: number }
  | { readonly op: 'look'; look: number; isNegative: boolean; next: number }
  | { readonly op: 'match' };

/** Sets and lookarounds that all programs of a pattern share. */
export interface Shared {
  readonly sets: CharSet[];
  /** Numbers of the sets by their keys. */
  readonly numbers: Map<string, number>;
  readonly looks: Lookaround[];
}

export interface Program {
  readonly instructions: readonly Instruction[];
  readonly start: number;
}

/** Maximum number of instructions of a pattern. */
const LARGEST = 20_000;

/** Thrown for a pattern with too many instructions. */
export class TooLarge extends Error {}

/** Returns the program of a node; with `isReversed`, for texts read from their end. */
export function compileNode(node: Node, shared: Shared, isReversed: boolean): Program {
  const compiler = new Compiler(shared, isReversed);
  return compiler.program(node);
}

class Compiler {
  private readonly instructions: Instruction[] = [];

  constructor(
    private readonly shared: Shared,
    private readonly isReversed: boolean,
  ) {}

  program(node: Node): Program {
    const start = this.emit(node, this.push({ op: 'match' }));
    return { instructions: this.instructions, start };
  }

  private push(instruction: Instruction): number {
    if (this.instructions.length >= LARGEST) {
      throw new TooLarge(`more than ${LARGEST} states: counts are too large`);
    }
    return this.instructions.push(instruction) - 1;
  }

  /**
   * Returns the index of the first instruction of `node`. The last instruction continues at `next`.
   */
  private emit(node: Node, next: number): number {
    switch (node.kind) {
      case 'set':
        return this.push({ op: 'set', set: this.setNumber(node.set), next });
      case 'cat': {
        const nodes = this.isReversed ? [...node.nodes].reverse() : node.nodes;
        return nodes.reduceRight((after, part) => this.emit(part, after), next);
      }
      case 'alt': {
        const starts = node.nodes.map((part) => this.emit(part, next));
        return starts.reduceRight((second, first) => this.push({ op: 'split', first, second }));
      }
      case 'repeat':
        return this.repeat(node, next);
      case 'side': {
        const { isAhead, isNegative } = node;
        return this.push({ op: 'side', set: this.setNumber(node.set), isAhead, isNegative, next });
      }
      case 'look':
        return this.push({
          op: 'look',
          look: this.lookNumber(node),
          isNegative: node.isNegative,
          next,
        });
    }
  }

  private repeat(
    { node, min, max, isLazy }: Extract<Node, { kind: 'repeat' }>,
    end: number,
  ): number {
    const addSplit = (inner: number, after: number): number =>
      this.push(
        isLazy
          ? { op: 'split', first: after, second: inner }
          : { op: 'split', first: inner, second: after },
      );
    let next = end;
    if (max === Number.POSITIVE_INFINITY) {
      const loop = addSplit(end, end);
      const inner = this.emit(node, loop);
      const ownInstruction = this.instructions[loop] as { first: number; second: number };
      if (isLazy) ownInstruction.second = inner;
      else ownInstruction.first = inner;
      next = min > 0 ? inner : loop;
    } else {
      for (let i = min; i < max; ++i) next = addSplit(this.emit(node, next), end);
    }
    const rest = max === Number.POSITIVE_INFINITY ? min - 1 : min;
    for (let i = 0; i < rest; ++i) {
      const before = next;
      next = this.emit(node, before);
      if (next === before) break; // The node is empty.
    }
    return next;
  }

  private setNumber(set: CharSet): number {
    const { sets, numbers } = this.shared;
    const known = numbers.get(set.key);
    if (known !== undefined) return known;
    numbers.set(set.key, sets.length);
    return sets.push(set) - 1;
  }

  private lookNumber(node: Lookaround): number {
    const { looks } = this.shared;
    const index = looks.indexOf(node);
    return index >= 0 ? index : looks.push(node) - 1;
  }
}
