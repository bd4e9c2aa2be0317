// Decides which variable a name refers to, by jinja2's rules. jinja2's compiler decides it before a
// render. A frame of statements has its own symbols; frames of one function share slots.
import { required } from '../../runtime/required.js';
import { childrenOf, type Node, type Statement } from './nodes.js';

/** Slots of a function's variables: the template, a macro, or a recursive loop. */
export class FunctionScope {
  private readonly slots = new Map<string, number>();

  constructor(readonly outer: FunctionScope | null) {}

  get size(): number {
    return this.slots.size;
  }

  slotOf(variable: string): number {
    const slot = this.slots.get(variable) ?? this.slots.size;
    this.slots.set(variable, slot);
    return slot;
  }
}

/** Initial value of a variable in a frame. */
type InitialValue =
  | { action: 'parameter' }
  | { action: 'undefined' }
  /** The variable of the context. */
  | { action: 'resolve'; name: string }
  /** The variable of an outer frame. */
  | { action: 'alias'; of: Variable };

/** A variable, and the function that has its slot. */
export interface Variable {
  readonly id: string;
  readonly scope: FunctionScope;
}

export class Symbols {
  private readonly level: number;
  readonly variables: Map<string, Variable>;
  readonly loads: Map<string, InitialValue>;
  private readonly stores: Set<string>;

  constructor(
    readonly parent: Symbols | null,
    readonly scope: FunctionScope,
    copied: Symbols | null = null,
  ) {
    this.level = copied ? copied.level : parent ? parent.level + 1 : 0;
    this.variables = new Map(copied?.variables);
    this.loads = new Map(copied?.loads);
    this.stores = new Set(copied?.stores);
  }

  /** Returns the variable of a name in this frame or an outer frame. */
  find(name: string): Variable | null {
    return this.variables.get(name) ?? this.parent?.find(name) ?? null;
  }

  private define(name: string, load: InitialValue): void {
    const variable = { id: `${this.level} ${name}`, scope: this.scope };
    this.variables.set(name, variable);
    this.loads.set(variable.id, load);
  }

  declareParameter(name: string): void {
    this.stores.add(name);
    this.define(name, { action: 'parameter' });
  }

  store(name: string): void {
    this.stores.add(name);
    if (this.variables.has(name)) return;
    const outer = this.parent?.find(name) ?? null;
    this.define(name, outer === null ? { action: 'undefined' } : { action: 'alias', of: outer });
  }

  load(name: string): void {
    if (this.find(name) === null) this.define(name, { action: 'resolve', name });
  }

  /** Merges the branches of an "if": a variable that only some branches store may be unset. */
  private merge(branches: readonly Symbols[]): void {
    const stored = new Set(branches.flatMap((branch) => [...branch.stores]));
    for (const name of this.stores) stored.delete(name);
    for (const branch of branches) {
      for (const [name, variable] of branch.variables) this.variables.set(name, variable);
      for (const [id, load] of branch.loads) this.loads.set(id, load);
      for (const name of branch.stores) this.stores.add(name);
    }
    for (const name of stored) {
      const { id } = required(this.find(name));
      const outer = this.parent?.find(name) ?? null;
      const load: InitialValue =
        outer === null ? { action: 'resolve', name } : { action: 'alias', of: outer };
      this.loads.set(id, load);
    }
  }

  /** Declares the variables of the nodes in this frame. */
  visitAll(nodes: readonly Node[]): void {
    for (const node of nodes) this.visit(node);
  }

  /** Declares a target of a loop as a parameter of its frame. */
  visitTarget(node: Node): void {
    if (node.type === 'Name') this.declareParameter(node.name);
    else for (const child of childrenOf(node)) this.visitTarget(child);
  }

  private visit(node: Node): void {
    if (node.type === 'Name') {
      if (node.context === 'param') this.declareParameter(node.name);
      else if (node.context === 'store') this.store(node.name);
      else this.load(node.name);
    } else if (node.type === 'NamespaceTarget') this.load(node.name);
    else if (node.type === 'Macro') this.store(node.name);
    else if (node.type === 'If') {
      this.visitIf(node.test, [node.body, node.branches, node.otherwise]);
    } else {
      this.visitAll(frameNodes(node));
      if (node.type === 'Load') for (const name of node.stored) this.store(name);
    }
  }

  private visitIf(test: Node, branches: readonly (readonly Statement[])[]): void {
    this.visit(test);
    const copies = branches.map((branch) => {
      const copy = new Symbols(this.parent, this.scope, this);
      copy.visitAll(branch);
      return copy;
    });
    this.merge(copies);
  }
}

/** Returns the nodes in the frame of a node; nested frames are visited later. */
function frameNodes(node: Node): readonly Node[] {
  switch (node.type) {
    case 'Assign':
      return [node.value, node.target];
    case 'AssignBlock':
      return [node.target];
    case 'For':
      return [node.iterated];
    case 'CallBlock':
      return node.call === null ? [] : [node.call];
    case 'FilterBlock':
      return [node.filter];
    case 'With':
      return node.values;
    case 'Block':
      return [];
    default:
      return childrenOf(node);
  }
}

/** Returns the names that the nodes read before they store them. */
export function findUndeclared(nodes: readonly Node[], names: readonly string[]): Set<string> {
  const searched = new Set(names);
  const undeclared = new Set<string>();
  const visit = (node: Node): void => {
    if (node.type === 'Block') return;
    if (node.type === 'Name') {
      if (node.context === 'load' && searched.has(node.name)) undeclared.add(node.name);
      else if (undeclared.size < searched.size) searched.delete(node.name);
      return;
    }
    for (const child of childrenOf(node)) visit(child);
  };
  for (const node of nodes) visit(node);
  return undeclared;
}

/** Returns whether `matches` is true for a node or a descendant. */
export function someNode(nodes: readonly Node[], matches: (node: Node) => boolean): boolean {
  return nodes.some((node) => matches(node) || someNode(childrenOf(node), matches));
}
