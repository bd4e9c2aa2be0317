// Which cores each rank of a node gets: a pure function of the machine's shape.
import type { Core } from './topology.js';

/**
 * Shares the cores between ranks, of which rank i would be near NUMA node `nodes[i]` (null: no
 * matter where). Where every rank's node is known and has cores, ranks of one node share that
 * node's cores; otherwise all ranks share all cores. Shares are contiguous, disjoint and differ by
 * at most one core; null where there are fewer cores than ranks to share them.
 */
export function splitCores(
  cores: readonly Core[],
  nodes: readonly (number | null)[],
): Core[][] | null {
  const located = nodes.every((node) => cores.some((core) => core.numaNode === node));
  const pools = located ? nodes : nodes.map(() => null);
  const shares = pools.map((node, rank) => {
    const pool = node === null ? cores : cores.filter((core) => core.numaNode === node);
    const sharers = pools.filter((other) => other === node).length;
    const index = pools.slice(0, rank).filter((other) => other === node).length;
    const start = Math.floor((index * pool.length) / sharers);
    const end = Math.floor(((index + 1) * pool.length) / sharers);
    return pool.slice(start, end);
  });
  return shares.every((share) => share.length > 0) ? shares : null;
}
