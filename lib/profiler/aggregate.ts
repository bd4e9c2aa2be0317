// Module classes added up at each depth of the tree, as DeepSpeed's aggregated profile has them.
import type { ModuleProfile } from './profile.js';

export interface Aggregate {
  /** Class name. */
  type: string;
  parameters: number;
  /** Forward. */
  macs: number;
  /** Forward, device milliseconds. */
  latencyMs: number;
}

/** One list per level, the model's first; `deepest` -1 goes to the leaves. */
export function aggregateByDepth(model: ModuleProfile, deepest: number): Aggregate[][] {
  const levels: Aggregate[][] = [];
  const last = deepest < 0 ? Number.POSITIVE_INFINITY : deepest;
  for (let level = [model]; level.length > 0 && levels.length <= last; ) {
    levels.push(byType(level));
    level = level.flatMap(({ children }) => children);
  }
  return levels;
}

function byType(modules: readonly ModuleProfile[]): Aggregate[] {
  const sums = new Map<string, Aggregate>();
  for (const { type, parameters, work, latencyMs } of modules) {
    const sum = sums.get(type) ?? { type, parameters: 0, macs: 0, latencyMs: 0 };
    sum.parameters += parameters;
    sum.macs += work.forward.macs;
    sum.latencyMs += latencyMs;
    sums.set(type, sum);
  }
  return [...sums.values()];
}
