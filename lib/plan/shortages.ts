// Compares the certain memory of a run with each device, host and disk before any allocation.

import type { ResolvedConfig } from '../../types/config.js';
import { DsError } from '../errors.js';
import type { Module } from '../nn/module.js';
import type { Optimizer } from '../optim/optimizer.js';
import { byteText } from '../runtime/byte-text.js';
import type { Device } from '../runtime/device.js';
import { type Disk, diskOf } from '../runtime/disk.js';
import { type HostLimits, hostLimits } from '../runtime/host-limits.js';
import { required } from '../runtime/required.js';
import { setupOfConfig } from './config-setup.js';
import { type MinimumBytes, type Parts, predictMinimum } from './memory.js';
import { countSizes } from './model-sizes.js';
import { factsOf } from './optimizer-facts.js';
import { countReturnedBytes, deviceLimit, groupBy } from './rank-memory.js';

/** MinimumBytes, with the bytes on disks by folder. */
type MemoryNeeds = Omit<MinimumBytes, 'disk'> & { disk: Parts };

/** The needs of one rank, and the limits of its device, host and disks. */
export interface MemoryClaim {
  needs: MemoryNeeds;
  /** Bytes of the model in host memory now, and of the allocator, which the run uses. */
  returned: number;
  device: { name: string; isHost: boolean; limit: number | null };
  host: HostLimits;
  /** The disk of each folder, with its free bytes. */
  disks: Readonly<Record<string, Disk>>;
  /**
   * Host memory with speculative updates, if the configuration permits updates with and without
   * speculation; null otherwise. `needs` is then without speculation.
   */
  speculated: Parts | null;
}

/** A memory with too few bytes. */
export interface Shortage {
  /** Name of the memory, such as "host memory for 2 ranks". */
  of: string;
  parts: Parts;
  /** The available amount as text. */
  there: string;
  /** Selects the settings in the hint. */
  tier: 'device' | 'host' | 'disk';
  /** False if the system may add memory during the run. */
  isCertain: boolean;
}

/** The inputs of the count. */
export interface CountInputs {
  module: Module;
  config: ResolvedConfig;
  optimizer: Optimizer;
  /** Ranks of the shard group, which divide state, and at stage 3 weights. */
  shards: number;
}

/**
 * Returns the needs, and the host memory with speculative updates: see MemoryClaim. Speculation
 * uses the configured gpu_share, because the device stores the gradients of its share.
 */
export function countNeeds(
  { module, config, optimizer, shards }: CountInputs,
  device: Device,
): { needs: MemoryNeeds; speculated: Parts | null } {
  const { offload_optimizer: offload, offload_param: param } = config.zero_optimization;
  const owned = new Set<unknown>(optimizer.groups.flatMap(({ params }) => params));
  const sizes = countSizes(module, (parameter) => parameter.requiresGrad && owned.has(parameter));
  const isHost = device.kind === 'cpu';
  const mesh = { data: shards, tokens: 1, layers: 1, stages: 1 };
  const setup = setupOfConfig(config, { optimizer: factsOf(optimizer), isHost, mesh });
  const leavesSpeculation =
    offload.device === 'cpu' && offload.super_offload === null && setup.speculates;
  const planned = { ...setup, speculates: setup.speculates && !leavesSpeculation };
  const isShared = offload.gpu_share === null ? !isHost : offload.gpu_share > 0;
  // The device may update any share.
  const shares = isShared ? [0, 1] : [0];
  const all = shares.map((gpuShare) => predictMinimum(sizes, { ...planned, gpuShare }));
  const { disk } = required(all[0]);
  const files = [
    { [String(offload.nvme_path)]: disk.state },
    { [String(param.nvme_path)]: disk.weights },
  ];
  const onDisk = Object.entries(addParts(files)).filter(([, bytes]) => bytes > 0);
  const needs = {
    device: minimumParts(all.map(({ device: parts }) => parts)),
    host: minimumParts(all.map(({ host }) => host)),
    disk: Object.fromEntries(onDisk),
  };
  return { needs, speculated: leavesSpeculation ? predictMinimum(sizes, setup).host : null };
}

/** Returns the minimum of each part. */
function minimumParts(all: readonly Parts[]): Parts {
  const names = Object.keys(required(all[0]));
  const of = (name: string): number => Math.min(...all.map((parts) => required(parts[name])));
  return Object.fromEntries(names.map((name) => [name, of(name)]));
}

/**
 * Returns the shortage of host memory for speculation. Returns null if the configuration decides
 * about speculation, if memory suffices, or if the host may receive more.
 */
export function findSpeculationShortage(claims: readonly MemoryClaim[]): Shortage | null {
  if (!claims.every(({ speculated }) => speculated !== null)) return null;
  const speculating = claims.map((claim) => ({
    ...claim,
    needs: { ...claim.needs, host: required(claim.speculated) },
  }));
  return (
    findShortages(speculating).find(({ tier, isCertain }) => tier === 'host' && isCertain) ?? null
  );
}

/** Returns the needs of this process, and the limits of its device, host and disks. */
export function measureClaim(counted: CountInputs, device: Device): MemoryClaim {
  const { needs, speculated } = countNeeds(counted, device);
  const disks = Object.keys(needs.disk).map((folder) => [folder, diskOf(folder)] as const);
  return {
    needs,
    speculated,
    returned: countReturnedBytes(counted.module),
    device: { name: device.name, isHost: device.kind === 'cpu', limit: deviceLimit(device) },
    host: hostLimits(),
    disks: Object.fromEntries(disks),
  };
}

/** Returns all shortages; equal on every rank. */
export function findShortages(claims: readonly MemoryClaim[]): Shortage[] {
  return [...findOnDevices(claims), ...findOnHosts(claims), ...findOnDisks(claims)];
}

function findOnDevices(claims: readonly MemoryClaim[]): Shortage[] {
  return claims.flatMap(({ needs: { device: parts }, device: { name, limit } }, rank) => {
    if (limit === null || sumParts(parts) <= limit) return [];
    const suffix = claims.length > 1 ? ` of rank ${rank}` : '';
    const of = `the memory of ${name}${suffix}`;
    return [{ of, parts, there: byteText(limit), tier: 'device', isCertain: true }];
  });
}

function findOnHosts(claims: readonly MemoryClaim[]): Shortage[] {
  return groupBy(claims, ({ host }) => host.machine).flatMap((here): Shortage[] => {
    const all = here.map(({ needs, device }) => [needs.host, device.isHost ? needs.device : {}]);
    const parts = addParts(all.flat());
    const returned = here.reduce((sum, claim) => sum + claim.returned, 0);
    const max = (free: (limits: HostLimits) => number): number =>
      Math.max(...here.map(({ host }) => free(host))) + returned;
    const suffix = here.length > 1 ? ` for ${here.length} ranks` : '';
    const short = { of: `host memory${suffix}`, parts, tier: 'host' } as const;
    const { host } = required(here[0]);
    const within = host.groups.flatMap(({ group, limit }, i): Shortage[] => {
      const free = max(({ groups }) => groups[i]?.free ?? Number.MAX_SAFE_INTEGER);
      if (sumParts(parts) <= free) return [];
      const there = `${byteText(free)} free of the ${byteText(limit)} limit of control group ${group}`;
      return [{ ...short, there, isCertain: true }];
    });
    const free = max((limits) => limits.free);
    if (within.length > 0 || sumParts(parts) <= free) return within.slice(0, 1);
    const there = `${byteText(free)} free of ${byteText(host.total)}`;
    const atMost = max((limits) => limits.atMost);
    if (host.canGrow && sumParts(parts) > atMost) {
      return [{ ...short, there: `${byteText(atMost)} of memory and swap`, isCertain: true }];
    }
    return [{ ...short, there, isCertain: !host.canGrow }];
  });
}

function findOnDisks(claims: readonly MemoryClaim[]): Shortage[] {
  const files = claims.flatMap(({ needs, host, disks }) =>
    Object.entries(needs.disk).map(([folder, bytes]) => {
      const { disk = '', free = Number.MAX_SAFE_INTEGER } = disks[folder] ?? {};
      return { folder, bytes, free, disk: `${host.machine}\n${disk}` };
    }),
  );
  return groupBy(files, ({ disk }) => disk).flatMap((here): Shortage[] => {
    const parts = addParts(here.map(({ folder, bytes }) => ({ [folder]: bytes })));
    const free = Math.max(...here.map((file) => file.free));
    if (sumParts(parts) <= free) return [];
    const there = `${byteText(free)} free`;
    return [{ of: 'disk', parts, there, tier: 'disk', isCertain: true }];
  });
}

const sumParts = (parts: Parts): number =>
  Object.values(parts).reduce((sum, bytes) => sum + bytes, 0);

/** Adds parts of the same name. */
export function addParts(all: readonly Parts[]): Parts {
  const sums: Record<string, number> = {};
  for (const parts of all) {
    for (const [name, bytes] of Object.entries(parts)) sums[name] = (sums[name] ?? 0) + bytes;
  }
  return sums;
}

export function shortageError(shortages: readonly Shortage[], config: ResolvedConfig): DsError {
  const needs = shortages.map(({ of, parts }) => formatNeeds(of, parts));
  const hints = shortages.flatMap(({ tier }) => suggestSettings(tier, config));
  return new DsError({
    code: 'DS_OUT_OF_MEMORY',
    op: 'initialize',
    expected: `${needs.join(', ')}, before any activations`,
    got: shortages.map(({ there }) => there).join(', '),
    hint: [...new Set(hints)].join(' '),
  });
}

/** Returns needs as text: "17.4 GiB of host memory (weights 2.9 GiB + ...)". */
export function formatNeeds(of: string, parts: Parts): string {
  const list = Object.entries(parts).filter(([, bytes]) => bytes > 0);
  const terms = list.map(([name, bytes]) => `${name} ${byteText(bytes)}`);
  return `${byteText(sumParts(parts))} of ${of} (${terms.join(' + ')})`;
}

/** Returns settings that reduce the need in a tier of memory. `ds plan` compares all of them. */
export function suggestSettings(
  tier: Shortage['tier'],
  { zero_optimization: zero }: ResolvedConfig,
): string[] {
  const { stage, offload_optimizer: optimizer, offload_param: param } = zero;
  const planAdvice = 'npx ds plan lists all settings with their memory.';
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
      planAdvice,
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
    planAdvice,
  ];
}
