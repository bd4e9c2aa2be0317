// Node types of the syntax tree of a template, as in jinja2.nodes.
import type { Value } from './values.js';

export interface Name {
  type: 'Name';
  name: string;
  context: 'load' | 'store' | 'param';
}

/** `ns.name` as a target of an assignment. */
export interface NamespaceTarget {
  type: 'NamespaceTarget';
  name: string;
  attribute: string;
}

interface TupleNode {
  type: 'Tuple';
  items: Expression[];
}

export type Target = Name | NamespaceTarget | TupleNode;

/** The arguments of a call, a filter or a test. */
export interface Arguments {
  args: Expression[];
  keywords: { key: string; value: Expression }[];
  /** `*args` and `**keywords`. */
  rest: Expression | null;
  restKeywords: Expression | null;
}

export interface Call extends Arguments {
  type: 'Call';
  node: Expression;
}

/** `node` is null in a filter block. */
export interface Filter extends Arguments {
  type: 'Filter';
  node: Expression | null;
  name: string;
  line: number;
}

export interface Test extends Arguments {
  type: 'Test';
  node: Expression;
  name: string;
  line: number;
}

export interface Slice {
  type: 'Slice';
  bounds: [Expression | null, Expression | null, Expression | null];
}

export type Expression =
  | Target
  | Call
  | Filter
  | Test
  | Slice
  | { type: 'Constant'; value: Value }
  | { type: 'List'; items: Expression[] }
  | { type: 'Dict'; pairs: { key: Expression; value: Expression }[] }
  | { type: 'Condition'; test: Expression; yes: Expression; no: Expression | null }
  | { type: 'Logic'; operator: 'and' | 'or'; left: Expression; right: Expression }
  | { type: 'Unary'; operator: 'not' | '-' | '+'; node: Expression }
  | { type: 'Binary'; operator: string; left: Expression; right: Expression }
  | { type: 'Compare'; node: Expression; operations: { operator: string; node: Expression }[] }
  | { type: 'Concat'; nodes: Expression[] }
  | { type: 'Attribute'; node: Expression; name: string }
  | { type: 'Item'; node: Expression; key: Expression };

export interface For {
  type: 'For';
  line: number;
  target: Target;
  iterated: Expression;
  test: Expression | null;
  isRecursive: boolean;
  body: Statement[];
  otherwise: Statement[];
}

export interface If {
  type: 'If';
  line: number;
  test: Expression;
  body: Statement[];
  /** Each branch is an If without further branches. */
  branches: If[];
  otherwise: Statement[];
}

/** Parameters and body of a macro or a call block. */
export interface Signature {
  parameters: Name[];
  /** Defaults of the last parameters. */
  defaults: Expression[];
  body: Statement[];
}

export interface Macro extends Signature {
  type: 'Macro';
  line: number;
  name: string;
}

/** `call` is null for {% generation %}, which marks the text of its body. */
export interface CallBlock extends Signature {
  type: 'CallBlock';
  line: number;
  call: Call | null;
}

export interface FilterBlock {
  type: 'FilterBlock';
  line: number;
  filter: Filter;
  body: Statement[];
}

export interface With {
  type: 'With';
  line: number;
  targets: Target[];
  values: Expression[];
  body: Statement[];
}

interface Assign {
  type: 'Assign';
  line: number;
  target: Target;
  value: Expression;
}

export interface AssignBlock {
  type: 'AssignBlock';
  line: number;
  target: Target;
  filter: Filter | null;
  body: Statement[];
}

export interface Block {
  type: 'Block';
  line: number;
  name: string;
  isScoped: boolean;
  isRequired: boolean;
  body: Statement[];
}

/** Text and printed expressions. */
export interface Output {
  type: 'Output';
  line: number;
  parts: (string | Expression)[];
}

export type Statement =
  | Output
  | For
  | If
  | Macro
  | CallBlock
  | FilterBlock
  | With
  | Assign
  | AssignBlock
  | Block
  | { type: 'Break' | 'Continue'; line: number }
  /** extends, include and import. They fail when they run, because there are no other templates. */
  | { type: 'Load'; line: number; tag: string; node: Expression; stored: string[] };

export type Node = Statement | Expression;

function argumentNodes({ args, keywords, rest, restKeywords }: Arguments): Node[] {
  const last = [rest, restKeywords].filter((item) => item !== null) as Node[];
  return [...args, ...keywords.map(({ value }) => value), ...last];
}

/** Filters that read the context; jinja2 does not fold them into constants. */
const CONTEXT_FILTERS = new Set(['map', 'random', 'reject', 'rejectattr', 'select', 'selectattr']);

/** Returns whether jinja2 evaluates the expression at compile time. */
export function isConstant(node: Node): boolean {
  const isOpen = node.type === 'Name' || node.type === 'NamespaceTarget' || node.type === 'Call';
  if (isOpen || (node.type === 'Filter' && CONTEXT_FILTERS.has(node.name))) return false;
  return childrenOf(node).every(isConstant);
}

/** Returns the direct children of a node, in jinja2's order. */
export function childrenOf(node: Node): readonly Node[] {
  switch (node.type) {
    case 'Tuple':
    case 'List':
      return node.items;
    case 'Call':
    case 'Filter':
    case 'Test':
      return node.node === null ? argumentNodes(node) : [node.node, ...argumentNodes(node)];
    case 'Slice':
      return node.bounds.filter((bound) => bound !== null) as Node[];
    case 'Dict':
      return node.pairs.flatMap(({ key, value }) => [key, value]);
    case 'Condition':
      return node.no === null ? [node.test, node.yes] : [node.test, node.yes, node.no];
    case 'Logic':
    case 'Binary':
      return [node.left, node.right];
    case 'Unary':
    case 'Attribute':
    case 'Load':
      return [node.node];
    case 'Compare':
      return [node.node, ...node.operations.map((operation) => operation.node)];
    case 'Concat':
      return node.nodes;
    case 'Item':
      return [node.node, node.key];
    default:
      return statementNodes(node);
  }
}

function statementNodes(node: Node): readonly Node[] {
  switch (node.type) {
    case 'Output':
      return node.parts.filter((part) => typeof part !== 'string') as Node[];
    case 'For':
      return [
        node.target,
        node.iterated,
        ...node.body,
        ...node.otherwise,
        ...(node.test === null ? [] : [node.test]),
      ];
    case 'If':
      return [node.test, ...node.body, ...node.branches, ...node.otherwise];
    case 'Macro':
      return [...node.parameters, ...node.defaults, ...node.body];
    case 'CallBlock': {
      const signatureNodes = [...node.parameters, ...node.defaults, ...node.body];
      return node.call === null ? signatureNodes : [node.call, ...signatureNodes];
    }
    case 'FilterBlock':
      return [...node.body, node.filter];
    case 'With':
      return [...node.targets, ...node.values, ...node.body];
    case 'Assign':
      return [node.target, node.value];
    case 'AssignBlock':
      return [node.target, ...(node.filter === null ? [] : [node.filter]), ...node.body];
    case 'Block':
      return node.body;
    default:
      return [];
  }
}
