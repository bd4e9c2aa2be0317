// Compares the certain memory of a run with each device, host and disk before any allocation.

import type { ResolvedConfig } from '../../../types/config.js';
import type { Distributed } from '../../comm/index.js';
import { DsError } from '../../errors.js';
import { byteText } from '../../runtime/byte-text.js';
import { cpu, type Device } from '../../runtime/device.js';
import { type Disk, diskOf } from '../../runtime/disk.js';
import { type HostLimits, hostLimits } from '../../runtime/host-limits.js';
import { required } from '../../runtime/required.js';
import {
  type CertainBytes,
  type Counted,
  certainBytes,
  type Parts,
  sumOf,
} from './certain-bytes.js';
import { speculates, splitsMasters, splitsStreamed } from './master-halves.js';
import { exchanged } from './setup-world.js';

/** The needs of one rank, and the limits of its device, host and disks. */
export interface Claim {
  needs: CertainBytes;
  /** `limit`: bytes of its cap, else its total; null if its memory is host memory without a cap. */
  device: { name: string; isHost: boolean; limit: number | null };
  host: HostLimits;
  /** By folder: its disk, and the free bytes. */
  disks: Readonly<Record<string, Disk>>;
  /**
   * Host memory with speculative updates, if the configuration allows both; `needs` is then that of
   * updates after the step decision.
   */
  speculated: Parts | null;
}

interface Shortage {
  /** For example "host memory for 2 ranks"; `there` is the available amount. */
  of: string;
  parts: Parts;
  there: string;
  /** Selects the settings in the hint. */
  tier: 'device' | 'host' | 'disk';
  /** False if the system may add memory during the run. */
  isCertain: boolean;
}

/**
 * Throws DS_OUT_OF_MEMORY on every rank if weights, gradients and state exceed the memory; the
 * error has the arithmetic and useful settings. A virtual machine may receive memory as it is used,
 * so a shortage of free memory there is only a notice; its total memory is a limit. Nothing is
 * allocated before. Returns the configuration. If it leaves speculation open and memory is too
 * short for it, speculation is turned off with a notice. `shards`: ranks of the shard group.
 */
export async function requireMemory(
  job: Distributed,
  given: Omit<Counted, 'hasGpuShare' | 'splitsMasters' | 'shards'>,
  shards: number,
): Promise<ResolvedConfig> {
  const { device } = job.world;
  const { config } = given;
  const isOpen = config.zero_optimization.offload_optimizer.super_offload === null;
  const counted = {
    ...{ ...given, shards, hasGpuShare: hasGpuShare(config, device) },
    splitsMasters: maySplit({ ...given, config: isOpen ? waiting(config) : config, device }),
  };
  const own = claimOf(counted, device);
  const claims = await exchanged(job, own);
  const found = shortages(claims);
  const certain = found.filter(({ isCertain }) => isCertain);
  if (certain.length > 0) throw refusal(certain, config);
  const tooMuch = shortageOfSpeculation(claims);
  const resolved = tooMuch ? waiting(config) : config;
  if (job.rank !== 0) return resolved;
  if (tooMuch) notice(waitingText(tooMuch));
  for (const shortage of found) {
    const { message } = refusal([shortage], config);
    notice(`${message} A virtual machine may receive more memory, so training continues.`);
  }
  return resolved;
}

/**
 * Whether all masters in host memory may be split, because the device's share may be all of them.
 */
const maySplit = (given: Parameters<typeof speculates>[0]): boolean =>
  splitsMasters(given) || (hasGpuShare(given.config, given.device) && splitsStreamed(given));

export function notice(text: string): void {
  process.emitWarning(text, { type: 'DsNotice', code: 'DS_NOTICE' });
}

/** Returns the frozen configuration with updates after the step decision. */
export function waiting(config: ResolvedConfig): ResolvedConfig {
  const zero = config.zero_optimization;
  const offload = Object.freeze({ ...zero.offload_optimizer, super_offload: false });
  const resolved = Object.freeze({ ...zero, offload_optimizer: offload });
  return Object.freeze({ ...config, zero_optimization: resolved });
}

/**
 * See Claim.speculated. Uses the configured gpu_share, because the device stores the gradients of
 * its share.
 */
function speculativeBytes(counted: Counted, device: Device): Parts | null {
  const {
    device: home,
    super_offload,
    gpu_share,
  } = counted.config.zero_optimization.offload_optimizer;
  const isOpen = home === 'cpu' && super_offload === null && speculates({ ...counted, device });
  if (!isOpen) return null;
  const gpuShare = gpu_share ?? 0;
  const of = (halves: boolean): Parts =>
    certainBytes({ ...counted, splitsMasters: halves, hasGpuShare: false }).host;
  const [byThreads, byDevice] = [of(false), of(splitsStreamed({ ...counted, device }))];
  const host = Object.fromEntries(
    Object.entries(byThreads).map(([part, bytes]) => {
      return [part, (1 - gpuShare) * bytes + gpuShare * required(byDevice[part])];
    }),
  );
  const { 'gradients on their way': gradients = 0, ...rest } = host;
  return { ...rest, 'gradients of two steps': 2 * gradients * (1 - gpuShare) };
}

/**
 * Returns the shortage of host memory for speculation, if the configuration leaves it open. Returns
 * null if memory suffices or the host may receive more.
 */
export function shortageOfSpeculation(claims: readonly Claim[]): Shortage | null {
  if (!claims.every(({ speculated }) => speculated !== null)) return null;
  const speculating = claims.map((one) => ({
    ...one,
    needs: { ...one.needs, host: required(one.speculated) },
  }));
  return shortages(speculating).find(({ tier, isCertain }) => tier === 'host' && isCertain) ?? null;
}

function waitingText({ of, parts, there }: Shortage): string {
  return (
    `initialize: updates wait until backward has ended ("super_offload": false). Speculation needs ` +
    `${needsText(of, parts)}, and there is ${there}. "super_offload": true enables them anyway.`
  );
}

/** Whether the device may update a share of the state in host memory. */
function hasGpuShare({ zero_optimization: zero }: ResolvedConfig, device: Device): boolean {
  const { gpu_share: share } = zero.offload_optimizer;
  return share === null ? device.kind !== 'cpu' : share > 0;
}

/** Returns the claim of this process. */
export function claimOf(counted: Counted, device: Device): Claim {
  const needs = certainBytes(counted);
  const { reserved, inUse } = cpu().memory;
  const { cap, total } = device.memory;
  const isHost = device.kind === 'cpu';
  const limit = cap > 0 ? cap : isHost ? null : total;
  const disks = Object.keys(needs.disk).map((folder) => [folder, diskOf(folder)] as const);
  return {
    // Later allocations reuse memory that an earlier engine left in the CPU allocator.
    needs: { ...needs, returned: needs.returned + Math.max(0, reserved - inUse) },
    device: { name: device.name, isHost, limit },
    host: hostLimits(),
    disks: Object.fromEntries(disks),
    speculated: speculativeBytes(counted, device),
  };
}

/** Returns all shortages; equal on every rank. */
export function shortages(claims: readonly Claim[]): Shortage[] {
  return [...onDevices(claims), ...onHosts(claims), ...onDisks(claims)];
}

function onDevices(claims: readonly Claim[]): Shortage[] {
  return claims.flatMap(({ needs: { device: parts }, device: { name, limit } }, rank) => {
    if (limit === null || sumOf(parts) <= limit) return [];
    const whose = claims.length > 1 ? ` of rank ${rank}` : '';
    const of = `the memory of ${name}${whose}`;
    return [{ of, parts, there: byteText(limit), tier: 'device', isCertain: true }];
  });
}

function onHosts(claims: readonly Claim[]): Shortage[] {
  return grouped(claims, ({ host }) => host.machine).flatMap((here): Shortage[] => {
    const all = here.map(({ needs, device }) => [needs.host, device.isHost ? needs.device : {}]);
    const parts = added(all.flat());
    const returned = here.reduce((sum, { needs }) => sum + needs.returned, 0);
    const most = (free: (limits: HostLimits) => number): number =>
      Math.max(...here.map(({ host }) => free(host))) + returned;
    const whose = here.length > 1 ? ` for ${here.length} ranks` : '';
    const short = { of: `host memory${whose}`, parts, tier: 'host' } as const;
    const { host } = required(here[0]);
    const within = host.groups.flatMap(({ group, limit }, i): Shortage[] => {
      const free = most(({ groups }) => groups[i]?.free ?? Number.MAX_SAFE_INTEGER);
      if (sumOf(parts) <= free) return [];
      const there = `${byteText(free)} free of the ${byteText(limit)} limit of control group ${group}`;
      return [{ ...short, there, isCertain: true }];
    });
    const free = most((limits) => limits.free);
    if (within.length > 0 || sumOf(parts) <= free) return within.slice(0, 1);
    const there = `${byteText(free)} free of ${byteText(host.total)}`;
    const atMost = most((limits) => limits.atMost);
    if (host.canGrow && sumOf(parts) > atMost) {
      return [{ ...short, there: `${byteText(atMost)} of memory and swap`, isCertain: true }];
    }
    return [{ ...short, there, isCertain: !host.canGrow }];
  });
}

function onDisks(claims: readonly Claim[]): Shortage[] {
  const files = claims.flatMap(({ needs, host, disks }) =>
    Object.entries(needs.disk).map(([folder, bytes]) => {
      const { disk = '', free = Number.MAX_SAFE_INTEGER } = disks[folder] ?? {};
      return { folder, bytes, free, disk: `${host.machine}\n${disk}` };
    }),
  );
  return grouped(files, ({ disk }) => disk).flatMap((here): Shortage[] => {
    const parts = added(here.map(({ folder, bytes }) => ({ [folder]: bytes })));
    const free = Math.max(...here.map((file) => file.free));
    if (sumOf(parts) <= free) return [];
    const there = `${byteText(free)} free`;
    return [{ of: 'disk', parts, there, tier: 'disk', isCertain: true }];
  });
}

function grouped<T>(all: readonly T[], key: (one: T) => string): T[][] {
  const groups = new Map<string, T[]>();
  for (const one of all) groups.set(key(one), [...(groups.get(key(one)) ?? []), one]);
  return [...groups.values()];
}

function added(all: readonly Parts[]): Parts {
  const sums: Record<string, number> = {};
  for (const parts of all) {
    for (const [name, bytes] of Object.entries(parts)) sums[name] = (sums[name] ?? 0) + bytes;
  }
  return sums;
}

function refusal(found: readonly Shortage[], config: ResolvedConfig): DsError {
  const needs = found.map(({ of, parts }) => needsText(of, parts));
  const hints = found.flatMap(({ tier }) => settings(tier, config));
  return new DsError({
    code: 'DS_OUT_OF_MEMORY',
    op: 'initialize',
    expected: `${needs.join(', ')}, before any activations`,
    got: found.map(({ there }) => there).join(', '),
    hint: [...new Set(hints)].join(' '),
  });
}

/** Formats "17.4 GiB of host memory (weights 2.9 GiB + ...)". */
export function needsText(of: string, parts: Parts): string {
  const list = Object.entries(parts).filter(([, bytes]) => bytes > 0);
  const terms = list.map(([name, bytes]) => `${name} ${byteText(bytes)}`);
  return `${byteText(sumOf(parts))} of ${of} (${terms.join(' + ')})`;
}

/** Returns settings that reduce the need in a tier of memory. `ds plan` compares all of them. */
export function settings(
  tier: Shortage['tier'],
  { zero_optimization: zero }: ResolvedConfig,
): string[] {
  const { stage, offload_optimizer: optimizer, offload_param: param } = zero;
  const ask = 'npx ds plan lists all settings with their memory.';
  if (tier === 'disk') {
    return [
      'Set nvme_path to a larger disk, or keep a share in memory with offload_optimizer.ratio.',
    ];
  }
  if (tier === 'host') {
    const moved =
      optimizer.device === 'cpu'
        ? [
            ...(optimizer.super_offload === true
              ? ['"super_offload": false saves 3.9 bytes per bf16 parameter.']
              : []),
            '"offload_optimizer": { "device": "nvme", "nvme_path": DIR } moves the state to a disk, "ratio" below 1 keeps a share on the device.',
          ]
        : [];
    const weights =
      stage === 3 && param.device === 'nvme'
        ? ['A smaller offload_param.max_in_cpu leaves more of the weights to the disk.']
        : [];
    return [
      ...moved,
      ...weights,
      'More ranks on other hosts divide the state from stage 1 on.',
      ask,
    ];
  }
  return [
    ...(optimizer.device === 'none'
      ? ['"offload_optimizer": { "device": "cpu" } moves the state to host memory.']
      : optimizer.ratio < 1
        ? ['A higher offload_optimizer.ratio moves more of the state to host memory.']
        : []),
    ...(param.device === 'none'
      ? ['"stage": 3 with "offload_param": { "device": "cpu" } moves the weights there.']
      : []),
    ...(stage < 3 ? ['More ranks divide the state from stage 1 on, and weights at stage 3.'] : []),
    ask,
  ];
}
