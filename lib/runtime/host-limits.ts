// Limits of a process: host memory, from /proc and the control groups of both versions, and open
// files.

import { readFileSync } from 'node:fs';
import { hostname } from 'node:os';
import { dirname, join } from 'node:path';
import { required } from './required.js';

/** A control group that limits this process. */
interface GroupLimit {
  /** The group's path, such as "/docker/0123" in /proc/self/cgroup, or a parent of it. */
  group: string;
  /** The limit in bytes for all processes of the group, and its unused or reclaimable bytes. */
  limit: number;
  free: number;
}

/** Memory limits of a process, in bytes. */
export interface HostLimits {
  /** Identifies the machine: equal for processes that share its memory and groups. */
  machine: string;
  total: number;
  /**
   * Unused memory plus memory that the kernel can reclaim or swap out: the largest possible
   * allocation.
   */
  free: number;
  /**
   * All memory and swap, in use or not. It is a certain limit even if `canGrow` makes `free`
   * uncertain.
   */
  atMost: number;
  /** Whether the host may return memory to this virtual machine while it runs, up to `atMost`. */
  canGrow: boolean;
  groups: readonly GroupLimit[];
}

/** A limit of version 1 that means "unlimited". */
const UNLIMITED = 2 ** 60;

/** Reads the limits below `root`; an absent file sets no limit. */
export function hostLimits(root = '/'): HostLimits {
  const memory = numbersOf(read(root, 'proc/meminfo'), 1024);
  const of = (name: string): number => memory.get(name) ?? 0;
  const swap = of('SwapFree');
  const cached = of('MemFree') + of('Buffers') + of('Cached') + of('SReclaimable') - of('Shmem');
  // The cache of ZFS is outside the kernel's page cache and shrinks as well.
  const arc = Number(
    /^size\s+\d+\s+(\d+)/m.exec(read(root, 'proc/spl/kstat/zfs/arcstats'))?.[1] ?? 0,
  );
  const unused = Math.max(cached, of('MemAvailable')) + arc;
  const membership = read(root, 'proc/self/cgroup');
  const boot = read(root, 'proc/sys/kernel/random/boot_id').trim();
  return {
    machine: [hostname(), boot, membership].join('\n'),
    total: of('MemTotal') || Number.MAX_SAFE_INTEGER,
    free: memory.size > 0 ? unused + swap : Number.MAX_SAFE_INTEGER,
    atMost: of('MemTotal') + of('SwapTotal') || Number.MAX_SAFE_INTEGER,
    canGrow: /^flags\s*:.*\bhypervisor\b/m.test(read(root, 'proc/cpuinfo')),
    groups: membership.split('\n').flatMap((line) => limitsOf(root, line, swap)),
  };
}

/** Returns how many files this process may open at a time; 1024 if unknown. */
export function openFileLimit(root = '/'): number {
  const [, soft = ''] = /^Max open files\s+(\S+)/m.exec(read(root, 'proc/self/limits')) ?? [];
  return soft === 'unlimited' ? Number.MAX_SAFE_INTEGER : Number(soft) || 1024;
}

/** Returns the limits of the groups in a line of /proc/self/cgroup, innermost first. */
function limitsOf(root: string, line: string, swap: number): GroupLimit[] {
  const [number, controllers = '', ...rest] = line.split(':');
  const path = rest.join(':');
  if (number === '0' && controllers === '') {
    return ancestorsOf(path).flatMap((group) => mergeLimits(root, group, swap));
  }
  if (!controllers.split(',').includes('memory')) return [];
  return ancestorsOf(path).flatMap((group) => legacy(root, group, swap));
}

/** Returns a folder and the folders above it: "/a/b", "/a", "/". */
function ancestorsOf(path: string): string[] {
  const up = dirname(path);
  return up === path ? [path] : [path, ...ancestorsOf(up)];
}

function mergeLimits(root: string, group: string, swap: number): GroupLimit[] {
  const file = (name: string): string => read(root, join('sys/fs/cgroup', group, name));
  const limit = Number.parseInt(file('memory.max'), 10);
  if (!Number.isFinite(limit)) return [];
  const stat = numbersOf(file('memory.stat'), 1);
  const dropped = ['active_file', 'inactive_file', 'slab_reclaimable'];
  return [
    { group, limit, free: bytesLeft(limit, file('memory.current'), { stat, dropped, swap }) },
  ];
}

function legacy(root: string, group: string, swap: number): GroupLimit[] {
  const file = (name: string): string => read(root, join('sys/fs/cgroup/memory', group, name));
  const limit = Number.parseInt(file('memory.limit_in_bytes'), 10);
  if (!(limit < UNLIMITED)) return [];
  const stat = numbersOf(file('memory.stat'), 1);
  // No file reports how much kernel memory is reclaimable.
  stat.set('kernel', Number.parseInt(file('memory.kmem.usage_in_bytes'), 10) || 0);
  const dropped = ['total_active_file', 'total_inactive_file', 'kernel'];
  const used = file('memory.usage_in_bytes');
  return [{ group, limit, free: bytesLeft(limit, used, { stat, dropped, swap }) }];
}

/**
 * Returns the bytes of a limit that remain if the kernel reclaims and swaps out as much of `used`
 * as it can.
 */
function bytesLeft(
  limit: number,
  used: string,
  { stat, dropped, swap }: { stat: Map<string, number>; dropped: string[]; swap: number },
): number {
  const files = dropped.reduce((sum, name) => sum + (stat.get(name) ?? 0), 0);
  return Math.min(limit, limit - (Number.parseInt(used, 10) || 0) + files) + swap;
}

/** Returns the numbers of lines such as "Name: 12 kB" and "name 12", by name. */
function numbersOf(text: string, unit: number): Map<string, number> {
  const matches = text.matchAll(/^([\w()]+):?\s+(\d+)/gm);
  return new Map(Array.from(matches, ([, name, value]) => [required(name), Number(value) * unit]));
}

function read(root: string, path: string): string {
  try {
    return readFileSync(join(root, path), 'utf8');
  } catch {
    return '';
  }
}
