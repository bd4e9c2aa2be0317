// Which share of the state in host memory the device updates where the configuration leaves it
// open: it follows from what both processors are found to be able to.
import { homedir, hostname } from 'node:os';
import { join } from 'node:path';

import type { Optimizer } from '../../optim/optimizer.js';
import { type Device, threads } from '../../runtime/device.js';
import { dtypeSize } from '../../runtime/dtype.js';
import { held, Tensor } from '../../tensor/index.js';
import { type Collectives, takeOver } from '../../zero/collectives.js';
import {
  balancedShare,
  type Measured,
  measureRates,
  type ProcessorRates,
} from '../../zero/home/processor-rates.js';
import { stateSizes } from '../../zero/home/range-state.js';
import type { Partition } from '../../zero/partition.js';
import { ratesOf } from './known-rates.js';

/** Below it a step has nothing to gain: all of its updates take a few milliseconds. */
const FEWEST_ELEMENTS = 2 ** 24;
/**
 * Of the device's memory beside weights, what gradients that stay there, and upper halves of
 * masters and offloaded weights with them, may take: all the time, or from backward, which lets
 * activations go meanwhile, to the update.
 */
const SHARE_OF_MEMORY = { always: 0.125, passing: 0.5 } as const;
/** Part of the keys: what was measured in another way before does not count. */
const METHOD = 'beyond caches';

export interface ShareOptions {
  device: Device;
  /** Whose state is in host memory. */
  partitions: readonly Partition[];
  /** The ranks that share units out: all of them take the first one's share. */
  group: Collectives;
  /** Of the state that streams. */
  optimizer: Optimizer;
  /** Bytes that stream of a master weight, beside what the state has of it. */
  master: number;
  /** Whether weights of the share live in host memory: they come from there for each forward. */
  gathers: boolean;
  /** Gradients that the device has memory for all the time; 0 where they are given back. */
  gradients: 0 | 1 | 2;
  /**
   * Bytes a parameter that the device keeps all the time beside gradients: the upper half of its
   * master, and its weight where this would be in host memory.
   */
  beside: 0 | 2 | 4;
  /** Whether backward leaves a rank its part of a unit's gradient, not the unit's: from stage 2. */
  shardsGradients: boolean;
}

/** The share of `partitions` that the device should update, from 0 to 1; the same on every rank. */
export function findGpuShare(options: ShareOptions): number {
  const { device, partitions, group, gradients, gathers } = options;
  if (device.kind === 'cpu') return 0;
  const elements = partitions.reduce((sum, { numel }) => sum + numel, 0);
  if (elements < FEWEST_ELEMENTS) return 0;
  const element = dtypeSize((partitions[0] as Partition).weights.dtype);
  const rates = ratesHere(options);
  if (rates === null) return agreedOn(group, device, 0);
  const state = stateBytes(options) / elements;
  const balanced = balancedShare(rates, { state, element, gathered: gathers ? element : 0 });
  const part = SHARE_OF_MEMORY[gradients === 0 ? 'passing' : 'always'];
  const most = (part * spareBytes(device, partitions)) / bytesThatStay(options);
  return agreedOn(group, device, Math.min(balanced, most));
}

/** Update rates of this rank's processors while other ranks update too; null as in ratesOf(). */
function ratesHere(options: ShareOptions): ProcessorRates | null {
  const { device, group } = options;
  const place = `${device.info.name}, ${threads()} threads, ${group.size} ranks`;
  const moments = momentsOf(options);
  const what = moments === 'f32' ? place : `${place}, moments in ${moments}`;
  return ratesOf(`${hostname()}, ${what}, ${METHOD}`, {
    isFirst: group.rank === 0,
    agree: (own) => agreedOn(group, device, own ? 1 : 0) === 1,
    measure: () => measureRates(device, { moments }),
    file: join(homedir(), '.cache', 'ds-native', 'processor-rates.json'),
  });
}

/** In what `optimizer` keeps Adam's moments; f32 for one that has others. */
export function momentsOf({
  partitions,
  optimizer,
}: Pick<ShareOptions, 'partitions' | 'optimizer'>): Measured['moments'] {
  const ranges = partitions.flatMap(({ groups }) => groups);
  const isNarrow = ranges.some((range) =>
    stateSizes(range, optimizer).some(({ name, dtype }) => name === 'exp_avg' && dtype === 'bf16'),
  );
  return isNarrow ? 'bf16' : 'f32';
}

/** Of all of `partitions`, master weights included. */
function stateBytes({ partitions, optimizer, master }: ShareOptions): number {
  const ranges = partitions.flatMap(({ groups }) => groups);
  const sizes = ranges.flatMap((range) => stateSizes(range, optimizer));
  const state = sizes.reduce((sum, { dtype, numel }) => sum + numel * dtypeSize(dtype), 0);
  return ranges.reduce((sum, { numel }) => sum + master * numel, state);
}

/** Bytes that stay on the device where it updates all of `partitions`: gradients above all. */
function bytesThatStay({ partitions, gradients, shardsGradients, beside }: ShareOptions): number {
  const asWritten = gradients === 0 && !shardsGradients;
  return partitions.reduce((sum, { unit, numel }) => {
    const elements = asWritten ? unit.layout.numel : Math.max(1, gradients) * numel;
    return sum + elements * dtypeSize(unit.gradDtype) + beside * numel;
  }, 0);
}

/** Bytes of the device beside weights, of which whole ones may not have come yet. */
function spareBytes(device: Device, partitions: readonly Partition[]): number {
  const { cap, total, inUse } = device.memory;
  const coming = partitions.reduce(
    (sum, { unit }) => sum + unit.layout.numel * dtypeSize(unit.dtype) - unit.bytes.weights,
    0,
  );
  return Math.max(0, (cap || total) - inUse - coming);
}

function agreedOn(group: Collectives, device: Device, share: number): number {
  if (group.size === 1) return share;
  const values = held(() => Tensor.from(Float32Array.of(share), { device }));
  takeOver(group, values);
  const agreed = values.item();
  values.release();
  return agreed;
}
