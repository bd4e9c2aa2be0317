// Chooses the device's share of updates of host state from the measured speed of both processors.

import { homedir, hostname } from 'node:os';
import { join } from 'node:path';
import type { Optimizer } from '../optim/optimizer.js';
import { type Device, threads } from '../runtime/device.js';
import { dtypeSize } from '../runtime/dtype.js';
import { required } from '../runtime/required.js';
import { held, Tensor } from '../tensor/index.js';
import type { Partition } from '../zero/shard.js';
import { stateSizes } from '../zero/state/range-state.js';
import { broadcastValues, type Collectives } from '../zero/wire.js';
import type { Footprint } from './footprint.js';
import { ratesOf } from './known-rates.js';
import {
  balancedShare,
  measureRates,
  type ProcessorRates,
  type RateSettings,
} from './processor-rates.js';
import type { Setup } from './setup.js';
import { footprintIn } from './state-parts.js';

/** Below this number of elements, all updates take a few milliseconds and sharing gains nothing. */
const FEWEST_ELEMENTS = 2 ** 24;
/**
 * Fraction of the device memory without weights that may hold gradients, upper halves of masters,
 * and offloaded weights. `always`: they stay for the whole run. `passing`: they live from backward,
 * which frees activations meanwhile, to the update.
 */
const MEMORY_FRACTION = { always: 0.125, passing: 0.5 } as const;
/** Part of the keys. Results of other measurement methods are ignored. */
const METHOD = 'beyond caches';

export interface ShareOptions {
  device: Device;
  /** Partitions with state in host memory. */
  partitions: readonly Partition[];
  /** The shard group. All its ranks use the share of the first one. */
  group: Collectives;
  optimizer: Optimizer;
  setup: Setup;
}

/**
 * Returns the share of `partitions` that the device should update, from 0 to 1. Equal on every
 * rank.
 */
export function findGpuShare(options: ShareOptions): number {
  const { device, partitions, group, setup } = options;
  if (device.kind === 'cpu') return 0;
  const elements = partitions.reduce((sum, { numel }) => sum + numel, 0);
  if (elements < FEWEST_ELEMENTS) return 0;
  const rates = ratesHere(options);
  if (rates === null) return agreedOn(group, device, 0);
  const footprint = footprintIn('streamed', setup);
  const element = dtypeSize(required(partitions[0]).weights.dtype);
  const balanced = balancedShare(rates, { ...footprint.crossing, element });
  const fraction = MEMORY_FRACTION[footprint.movesGradients ? 'always' : 'passing'];
  const max = (fraction * spareBytes(device, partitions)) / bytesThatStay(options, footprint);
  return agreedOn(group, device, Math.min(balanced, max));
}

/**
 * Measures the update rates of this rank's processors while other ranks measure too. Null as in
 * ratesOf().
 */
function ratesHere(options: ShareOptions): ProcessorRates | null {
  const { device, group } = options;
  const processors = `${device.info.name}, ${threads()} threads, ${group.size} ranks`;
  const moments = momentsOf(options);
  const what = moments === 'f32' ? processors : `${processors}, moments in ${moments}`;
  return ratesOf(`${hostname()}, ${what}, ${METHOD}`, {
    isFirst: group.rank === 0,
    agree: (own) => agreedOn(group, device, own ? 1 : 0) === 1,
    measure: () => measureRates(device, { moments }),
    file: join(homedir(), '.cache', 'ds-native', 'processor-rates.json'),
  });
}

/** The dtype of Adam's moments in `optimizer`; f32 for other optimizers. */
export function momentsOf({
  partitions,
  optimizer,
}: Pick<ShareOptions, 'partitions' | 'optimizer'>): RateSettings['moments'] {
  const ranges = partitions.flatMap(({ groups }) => groups);
  const isNarrow = ranges.some((range) =>
    stateSizes(range, optimizer).some(({ name, dtype }) => name === 'exp_avg' && dtype === 'bf16'),
  );
  return isNarrow ? 'bf16' : 'f32';
}

/**
 * Bytes on the device if it updates all `partitions`, mostly gradients. Without memory of their
 * own, gradients stay where backward writes them: before stage 2 in whole units.
 */
function bytesThatStay(
  { partitions, setup }: ShareOptions,
  { gradients, weights, movesGradients }: Footprint,
): number {
  const ownBytes = gradients.device + weights.device;
  return partitions.reduce((sum, { unit, numel }) => {
    if (movesGradients) return sum + ownBytes * numel;
    const elements = setup.stage < 2 ? unit.layout.numel : numel;
    return sum + elements * dtypeSize(unit.gradient.dtype) + ownBytes * numel;
  }, 0);
}

/** Bytes of the device without weights. Whole weights may not be allocated yet. */
function spareBytes(device: Device, partitions: readonly Partition[]): number {
  const { cap, total, inUse } = device.memory;
  const coming = partitions.reduce(
    (sum, { unit }) => sum + unit.layout.numel * dtypeSize(unit.dtype) - unit.bytes.weights,
    0,
  );
  return Math.max(0, (cap || total) - inUse - coming);
}

function agreedOn(group: Collectives, device: Device, value: number): number {
  if (group.size === 1) return value;
  const values = held(() => Tensor.from(Float32Array.of(value), { device }));
  broadcastValues(group, values);
  const agreed = values.item();
  values.release();
  return agreed;
}
