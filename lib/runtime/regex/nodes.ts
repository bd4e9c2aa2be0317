// The syntax tree of a pattern.
import { required } from '../required.js';
import { ANY, type CharSet, intersection, NEWLINE, not, range, single, union } from './char-set.js';

export type Node =
  | { readonly kind: 'set'; readonly set: CharSet }
  | { readonly kind: 'cat' | 'alt'; readonly nodes: readonly Node[] }
  | {
      readonly kind: 'repeat';
      readonly node: Node;
      readonly min: number;
      /** Infinity without a limit. */
      readonly max: number;
      readonly isLazy: boolean;
    }
  | Side
  | Lookaround;

/** Whether the next or previous character exists and is in a set. */
interface Side {
  readonly kind: 'side';
  readonly isAhead: boolean;
  readonly isNegative: boolean;
  readonly set: CharSet;
}

/** A lookahead or lookbehind of more than one character. */
export interface Lookaround {
  readonly kind: 'look';
  readonly isAhead: boolean;
  readonly isNegative: boolean;
  readonly node: Node;
}

export const cat = (nodes: readonly Node[]): Node =>
  nodes.length === 1 ? required(nodes[0]) : { kind: 'cat', nodes };
export const alt = (nodes: readonly Node[]): Node =>
  nodes.length === 1 ? required(nodes[0]) : { kind: 'alt', nodes };
export const setNode = (set: CharSet): Node => ({ kind: 'set', set });

const side = (isAhead: boolean, set: CharSet, isNegative = false): Side => ({
  kind: 'side',
  isAhead,
  isNegative,
  set,
});

/** Returns a lookaround; for a single character, a Side. */
export function look(isAhead: boolean, isNegative: boolean, node: Node): Node {
  if (node.kind === 'set') return side(isAhead, node.set, isNegative);
  return { kind: 'look', isAhead, isNegative, node };
}

export const TEXT_START = side(false, ANY, true);
export const TEXT_END = side(true, ANY, true);
/** Does not match after a newline that ends the text. */
export const LINE_START = alt([TEXT_START, cat([side(false, NEWLINE), side(true, ANY)])]);
export const LINE_END = alt([TEXT_END, side(true, NEWLINE)]);
/** Also matches before a newline that ends the text. */
export const LAST_LINE_END = alt([TEXT_END, look(true, false, cat([setNode(NEWLINE), TEXT_END]))]);

/** \R, which takes "\r\n" as a whole. */
export const LINE_BREAK = alt([
  cat([setNode(single(13)), setNode(NEWLINE)]),
  cat([setNode(single(13)), side(true, NEWLINE, true)]),
  setNode(union([range(10, 12), single(0x85), range(0x2028, 0x2029)])),
]);

/** \b, or \B. */
export function wordBorder(word: CharSet, isBorder: boolean): Node {
  const pair = (before: boolean, after: boolean): Node =>
    cat([side(false, word, !before), side(true, word, !after)]);
  return alt([pair(true, !isBorder), pair(false, isBorder)]);
}

/**
 * Returns a possessive repetition, or null if no other form is equivalent. A repeated set takes
 * every character of the set that follows.
 */
export function possessive(node: Node, min: number, max: number): Node | null {
  if (node.kind !== 'set') return null;
  const end = side(true, node.set, true);
  const repeat: Node = { kind: 'repeat', node, min, max, isLazy: false };
  if (max === Number.POSITIVE_INFINITY) return cat([repeat, end]);
  if (min === 0 && max === 1) return alt([node, end]);
  return null;
}

/**
 * Returns the characters that "." matches: all except newline, or all with "dot matches newline".
 */
export const dot = (hasNewline: boolean): Node =>
  setNode(hasNewline ? ANY : intersection([ANY, not(NEWLINE)]));
