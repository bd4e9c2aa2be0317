// Stores the work and the time of each module of a model in a tree.

import type { Module } from '../nn/index.js';
import { required } from '../runtime/required.js';
import type { Work } from './flop-counts.js';

/** The forward, the backward, and the forward ops that the backward runs again. */
export type Pass = 'forward' | 'backward' | 'recompute';
/** Work of each pass. */
export type PassWork = Record<Pass, Work>;

function createPassWork(): PassWork {
  const zero = (): Work => ({ macs: 0, flops: 0 });
  return { forward: zero(), backward: zero(), recompute: zero() };
}

export function addWork(to: Work, { macs, flops }: Work): void {
  to.macs += macs;
  to.flops += flops;
}

/** Counters of one module. A module with several paths occurs once, at its first path. */
export class ModuleNode {
  readonly children: ModuleNode[] = [];
  /** The module's work without its children. */
  readonly own = createPassWork();
  /** Forward calls, without recomputation. */
  calls = 0;
  /** Device milliseconds of the forward calls, including children. */
  latencyMs = 0;
  /** The part of `latencyMs` in calls of other modules by this module. */
  innerMs = 0;
  /** Device milliseconds of recomputed calls. */
  recomputeMs = 0;

  constructor(
    /** Path relative to the parent: "attn", "h.0". */
    readonly name: string,
    readonly path: string,
    readonly module: Module,
  ) {}

  /** Returns the work of the module and its descendants. */
  sumWork(): PassWork {
    const sum = createPassWork();
    for (const part of [this.own, ...this.children.map((child) => child.sumWork())]) {
      for (const pass of ['forward', 'backward', 'recompute'] as const) {
        addWork(sum[pass], part[pass]);
      }
    }
    return sum;
  }
}

/** The tree of `root`, and the node of each module. */
export class ModuleTree {
  readonly root: ModuleNode;
  private readonly nodes = new Map<Module, ModuleNode>();

  constructor(root: Module) {
    const byPath = new Map<string, ModuleNode>();
    for (const [path, module] of root.namedModules()) {
      const parent = path === '' ? null : findParent(byPath, path);
      const name = parent?.path ? path.slice(parent.path.length + 1) : path;
      const node = new ModuleNode(name, path, module);
      parent?.children.push(node);
      byPath.set(path, node);
      this.nodes.set(module, node);
    }
    this.root = required(byPath.get(''));
  }

  nodeOf(module: Module): ModuleNode {
    return required(this.nodes.get(module));
  }

  modules(): Iterable<Module> {
    return this.nodes.keys();
  }
}

/** Returns the node of the nearest ancestor path. Arrays of modules have no node. */
function findParent(byPath: ReadonlyMap<string, ModuleNode>, path: string): ModuleNode {
  for (let end = path.lastIndexOf('.'); end > 0; end = path.lastIndexOf('.', end - 1)) {
    const node = byPath.get(path.slice(0, end));
    if (node) return node;
  }
  return required(byPath.get(''));
}
