// Chooses which share of the state in host memory the GPU updates, from the measured speed of the
// CPU threads and of the GPU.

import { homedir, hostname } from 'node:os';
import { join } from 'node:path';
import type { Optimizer } from '../optim/optimizer.js';
import { type Device, threads } from '../runtime/device.js';
import { dtypeSize } from '../runtime/dtype.js';
import { required } from '../runtime/required.js';
import { held, Tensor } from '../tensor/index.js';
import type { Partition } from '../zero/partition.js';
import { stateSizes } from '../zero/state/tiles.js';
import { broadcastValues, type Collectives } from '../zero/wire.js';
import type { Footprint } from './footprint.js';
import { loadOrMeasureRates } from './known-rates.js';
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
 * and offloaded weights. `always`: if they stay for the whole run. `passing`: if they exist only
 * between backward, which frees activations, and the update.
 */
const MEMORY_FRACTION = { always: 0.125, passing: 0.5 } as const;
/**
 * The name of this measurement in the keys of cached rates, so that rates of other methods are not
 * used.
 */
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
  const rates = measureLocalRates(options);
  if (rates === null) return broadcastNumber(group, device, 0);
  const footprint = footprintIn('streamed', setup);
  const element = dtypeSize(required(partitions[0]).weights.dtype);
  const balanced = balancedShare(rates, { ...footprint.crossing, element });
  const fraction = MEMORY_FRACTION[footprint.movesGradients ? 'always' : 'passing'];
  const max =
    (fraction * countSpareBytes(device, partitions)) / countResidentBytes(options, footprint);
  return broadcastNumber(group, device, Math.min(balanced, max));
}

/**
 * Returns the update rates of this rank's processors, measured while other ranks measure too. Null
 * as in loadOrMeasureRates().
 */
function measureLocalRates(options: ShareOptions): ProcessorRates | null {
  const { device, group } = options;
  const processors = `${device.info.name}, ${threads()} threads, ${group.size} ranks`;
  const moments = momentsDType(options);
  const measuredSetup = moments === 'f32' ? processors : `${processors}, moments in ${moments}`;
  return loadOrMeasureRates(`${hostname()}, ${measuredSetup}, ${METHOD}`, {
    isFirst: group.rank === 0,
    broadcast: (isCached) => broadcastNumber(group, device, isCached ? 1 : 0) === 1,
    measure: () => measureRates(device, { moments }),
    file: join(homedir(), '.cache', 'ds-native', 'processor-rates.json'),
  });
}

/** Returns the dtype of Adam's moments in `optimizer`; f32 for other optimizers. */
export function momentsDType({
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
 * Returns the bytes that stay on the device if it updates all `partitions`; most of them are
 * gradients. Gradients without memory of their own stay in the memory of backward: before stage 2,
 * in whole units.
 */
function countResidentBytes(
  { partitions, setup }: ShareOptions,
  { gradients, weights, movesGradients }: Footprint,
): number {
  const bytesPerElement = gradients.device + weights.device;
  return partitions.reduce((sum, { unit, numel }) => {
    if (movesGradients) return sum + bytesPerElement * numel;
    const elements = setup.stage < 2 ? unit.layout.numel : numel;
    return sum + elements * dtypeSize(unit.gradient.dtype) + bytesPerElement * numel;
  }, 0);
}

/** Returns the free bytes of the device after all weights are allocated. */
function countSpareBytes(device: Device, partitions: readonly Partition[]): number {
  const { cap, total, inUse } = device.memory;
  const unallocated = partitions.reduce(
    (sum, { unit }) => sum + unit.layout.numel * dtypeSize(unit.dtype) - unit.bytes.weights,
    0,
  );
  return Math.max(0, (cap || total) - inUse - unallocated);
}

function broadcastNumber(group: Collectives, device: Device, value: number): number {
  if (group.size === 1) return value;
  const values = held(() => Tensor.from(Float32Array.of(value), { device }));
  broadcastValues(group, values);
  const agreed = values.item();
  values.release();
  return agreed;
}
