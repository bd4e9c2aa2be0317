// The modules of a model as a tree of counters: what each one did itself, and how long it ran.
import type { Module } from '../nn/index.js';
import type { Work } from './flop-counts.js';

/** The forward, its backward, and what the backward runs of the forward again. */
export type Pass = 'forward' | 'backward' | 'recompute';
/** Work by pass: forward, backward, and the forward that is run again in the backward. */
export type PassWork = Record<Pass, Work>;

function noWork(): PassWork {
  const zero = (): Work => ({ macs: 0, flops: 0 });
  return { forward: zero(), backward: zero(), recompute: zero() };
}

export function addWork(to: Work, { macs, flops }: Work): void {
  to.macs += macs;
  to.flops += flops;
}

/** Counters of one module. A module with several paths is in the tree once, under its first. */
export class ModuleNode {
  readonly children: ModuleNode[] = [];
  /** Without the children's. */
  readonly own = noWork();
  /** Forward calls, those of a recomputation left out. */
  calls = 0;
  /** Device milliseconds of these calls, children included. */
  latencyMs = 0;
  /** Of it, in calls of other modules directly from this one. */
  innerMs = 0;
  /** Device milliseconds of calls that a recomputation made. */
  recomputeMs = 0;

  constructor(
    /** Path below the parent: "attn", "h.0". */
    readonly name: string,
    readonly path: string,
    readonly module: Module,
  ) {}

  /** Work of the module and everything below it. */
  total(): PassWork {
    const sum = noWork();
    for (const part of [this.own, ...this.children.map((child) => child.total())]) {
      for (const pass of ['forward', 'backward', 'recompute'] as const) {
        addWork(sum[pass], part[pass]);
      }
    }
    return sum;
  }
}

/** The tree of `root` and a way to find a module's node. */
export class ModuleTree {
  readonly root: ModuleNode;
  private readonly nodes = new Map<Module, ModuleNode>();

  constructor(root: Module) {
    const byPath = new Map<string, ModuleNode>();
    for (const [path, module] of root.namedModules()) {
      const parent = path === '' ? null : nearest(byPath, path);
      const name = parent?.path ? path.slice(parent.path.length + 1) : path;
      const node = new ModuleNode(name, path, module);
      parent?.children.push(node);
      byPath.set(path, node);
      this.nodes.set(module, node);
    }
    this.root = byPath.get('') as ModuleNode;
  }

  of(module: Module): ModuleNode {
    return this.nodes.get(module) as ModuleNode;
  }

  modules(): Iterable<Module> {
    return this.nodes.keys();
  }
}

/** The node of the longest path above `path`; arrays of modules have none of their own. */
function nearest(byPath: ReadonlyMap<string, ModuleNode>, path: string): ModuleNode {
  for (let end = path.lastIndexOf('.'); end > 0; end = path.lastIndexOf('.', end - 1)) {
    const found = byPath.get(path.slice(0, end));
    if (found) return found;
  }
  return byPath.get('') as ModuleNode;
}
