// Which share of the state in host memory the device updates where the configuration leaves it
// open: what both processors are found to be able to, measured once per host.
import { mkdirSync, readFileSync, renameSync, writeFileSync } from 'node:fs';
import { homedir, hostname } from 'node:os';
import { join } from 'node:path';

import type { Optimizer } from '../../optim/optimizer.js';
import { type Device, threads } from '../../runtime/device.js';
import { dtypeSize } from '../../runtime/dtype.js';
import { held, Tensor } from '../../tensor/index.js';
import { type Collectives, takeOver } from '../../zero/collectives.js';
import {
  balancedShare,
  measureRates,
  type ProcessorRates,
} from '../../zero/home/processor-rates.js';
import { stateSizes } from '../../zero/home/range-state.js';
import type { Partition } from '../../zero/partition.js';

/** Below it a step has nothing to gain: all of its updates take a few milliseconds. */
const FEWEST_ELEMENTS = 2 ** 24;
/** Of the device's memory beside weights, what gradients that stay there may take. */
const SHARE_OF_MEMORY = 0.125;
/** A gradient that has come, and one that is not committed yet. */
const GRADIENTS = 2;
/** Hosts that the file remembers. */
const REMEMBERED = 32;

export interface ShareOptions {
  device: Device;
  /** Whose state is in host memory. */
  partitions: readonly Partition[];
  /** The ranks that share units out: all of them take the first one's share. */
  group: Collectives;
  optimizer: Optimizer;
}

/** The share of `partitions` that the device should update, from 0 to 1; the same on every rank. */
export function findGpuShare(options: ShareOptions): number {
  const { device, partitions, group } = options;
  if (device.kind === 'cpu') return 0;
  const elements = partitions.reduce((sum, { numel }) => sum + numel, 0);
  if (elements < FEWEST_ELEMENTS) return 0;
  const element = dtypeSize((partitions[0] as Partition).weights.dtype);
  const rates = knownRates(device, group.size);
  const balanced = balancedShare(rates, { state: stateBytes(options) / elements, element });
  const most = spareBytes(device, partitions) / (GRADIENTS * element * elements);
  return agreedOn(group, device, Math.min(balanced, most));
}

/** Of all of `partitions`, master weights included. */
function stateBytes({ partitions, optimizer }: ShareOptions): number {
  const sizes = partitions.flatMap(({ groups }) =>
    groups.flatMap((range) => [
      { dtype: 'f32', ...range } as const,
      ...stateSizes(range, optimizer),
    ]),
  );
  return sizes.reduce((sum, { dtype, numel }) => sum + numel * dtypeSize(dtype), 0);
}

/** Bytes of the device for gradients that stay there: weights have not come yet. */
function spareBytes(device: Device, partitions: readonly Partition[]): number {
  const { cap, total, inUse } = device.memory;
  const weights = partitions.reduce(
    (sum, { unit, weights: own }) => sum + unit.layout.numel * dtypeSize(own.dtype),
    0,
  );
  return Math.max(0, SHARE_OF_MEMORY * ((cap || total) - inUse - weights));
}

function agreedOn(group: Collectives, device: Device, share: number): number {
  if (group.size === 1) return share;
  const values = held(() => Tensor.from(Float32Array.of(share), { device }));
  takeOver(group, values);
  const agreed = values.item();
  values.release();
  return agreed;
}

/** Those of an earlier run on this host, else measured now, and kept for later ones. */
function knownRates(device: Device, ranks: number): ProcessorRates {
  const key = `${hostname()}, ${device.info.name}, ${threads()} threads, ${ranks} ranks`;
  const known = readKnown();
  const found = known[key];
  if (isRates(found)) return found;
  const rates = measureRates(device);
  const entries = [...Object.entries(known), [key, rates] as const].slice(-REMEMBERED);
  keep(Object.fromEntries(entries));
  return rates;
}

/** Of this user. */
const folder = (): string => join(homedir(), '.cache', 'ds-native');

/** Whatever the file holds that is no table counts as nothing: it is measured again. */
function readKnown(): Record<string, unknown> {
  try {
    const found: unknown = JSON.parse(readFileSync(join(folder(), 'processor-rates.json'), 'utf8'));
    return typeof found === 'object' && found ? { ...found } : {};
  } catch {
    return {};
  }
}

/** Where the folder cannot be written, each run measures for itself. */
function keep(rates: Record<string, unknown>): void {
  const file = join(folder(), 'processor-rates.json');
  const written = `${file}.${process.pid}`;
  try {
    mkdirSync(folder(), { recursive: true });
    writeFileSync(written, `${JSON.stringify(rates, null, 2)}\n`);
    renameSync(written, file);
  } catch {}
}

function isRates(value: unknown): value is ProcessorRates {
  const { host, link } = (value ?? {}) as Partial<ProcessorRates>;
  return [host, link].every((rate) => Number.isFinite(rate) && (rate as number) > 0);
}
