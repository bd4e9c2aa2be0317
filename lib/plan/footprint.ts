// Computes the bytes of a parameter from the strategies that store its state and master weight.
import { dtypeSize } from '../runtime/dtype.js';
import type { Bytes } from '../zero/state/memory.js';
import { DeviceState } from '../zero/state/placement/device.js';
import { HostState } from '../zero/state/placement/host.js';
import { NvmeState } from '../zero/state/placement/nvme.js';
import { StreamedState } from '../zero/state/placement/streamed.js';
import { F32Masters } from '../zero/state/shard-state.js';
import { JoinedMasters, SplitMasters } from '../zero/state/split-masters.js';
import type { MasterCosts, PlacementCosts } from '../zero/state/strategies.js';
import { LARGEST_SLOT, WEIGHT_SLOTS } from '../zero/state/weight-slots.js';

const PLACEMENTS = {
  device: DeviceState.costs,
  host: HostState.costs,
  streamed: StreamedState.costs,
  nvme: NvmeState.costs,
} satisfies Record<string, PlacementCosts>;
const MASTERS = {
  f32: F32Masters.costs,
  split: SplitMasters.costs,
  joined: JoinedMasters.costs,
} satisfies Record<string, MasterCosts>;

export type PlacementName = keyof typeof PLACEMENTS;

/** The strategies and the schedule of a state. */
export interface StateChoice {
  placement: PlacementName;
  masters: keyof typeof MASTERS;
  /** Memory in which weights are stored between uses. */
  weights: keyof Bytes;
  speculates: boolean;
}

/** Bytes of a parameter's weight, of its gradient, and of its declared state. */
export interface ParameterBytes {
  weight: number;
  gradient: number;
  state: number;
}

export interface Footprint {
  /** Master weight and state. */
  state: Bytes;
  /** Gradients outside the memory of backward. */
  gradients: Bytes;
  /** Updated weights in transfer, upper halves of masters, and offloaded weights on the device. */
  weights: Bytes;
  /** Whether the gradient leaves the memory of backward. */
  movesGradients: boolean;
  /** Whether the weight stays on the device although weights are offloaded. */
  keepsWeight: boolean;
  /** Bytes of open tiles per element of the largest tile. */
  tile: Bytes;
  /** Maximum elements of a tile for any configuration. */
  largestTile: number;
  /**
   * Bytes over PCIe in each direction: of an update on the device, and of the weight for each
   * forward.
   */
  crossing: { state: number; gathered: number };
}

/**
 * Returns the strategy for master weights. `splits`: whether the optimizer and the weights support
 * masters in two halves. Weights of a speculative update are one step ahead of the masters, so they
 * cannot be the upper halves of masters. Only the device joins halves.
 */
export function chooseMasters(
  placement: PlacementName,
  { splits, speculates }: { splits: boolean; speculates: boolean },
): StateChoice['masters'] {
  const isInHostMemory = PLACEMENTS[placement].state === 'host';
  if (!splits || !isInHostMemory) return 'f32';
  if (!speculates) return 'split';
  return placement === 'streamed' ? 'joined' : 'f32';
}

/** Returns the bytes of one parameter. `windows`: number of open tiles, if a key sets it. */
export function computeFootprint(
  { placement, masters, weights: stored, speculates }: StateChoice,
  { weight, gradient, state }: ParameterBytes,
  windows = 1,
): Footprint {
  const placementCosts = PLACEMENTS[placement];
  const masterCosts = MASTERS[masters];
  const { updates } = placementCosts;
  const isAway = stored !== 'device';
  // f32 weights on the device are their own masters.
  const isMaster = placementCosts.state === 'device' && !isAway && weight === dtypeSize('f32');
  const stateBytes = state + (isMaster ? 0 : masterCosts.stored);
  // Upper halves in host memory cross with the rest of a tile.
  const tileState = stateBytes + (masterCosts.areWeights && isAway ? weight : 0);
  const footprint: Footprint = {
    state: { ...none, [placementCosts.state]: stateBytes },
    gradients: { ...none },
    weights: { ...none, device: masterCosts.onDevice },
    movesGradients: updates !== null && !(masterCosts.areWeights && updates === 'device'),
    keepsWeight: isAway && masterCosts.keepsWeights,
    tile: { ...none, device: masterCosts.scratch },
    largestTile: placementCosts.largestTile,
    crossing: { state: tileState, gathered: 0 },
  };
  if (footprint.keepsWeight) footprint.weights.device += weight;
  else if (isAway) footprint.crossing.gathered = weight;
  if (updates === null) return footprint;
  if (footprint.movesGradients) footprint.gradients[updates] = (speculates ? 2 : 1) * gradient;
  // Updates write weights into gradients of their dtype, or into their storage.
  const hasWeightBuffer = masterCosts.areWeights || gradient === weight || stored === updates;
  if (!hasWeightBuffer) footprint.weights[updates] += weight;
  footprint.tile[updates] += (placementCosts.windows ?? windows) * tileState;
  if (masterCosts.areWeights && !isAway && updates === 'host') {
    footprint.tile.host += WEIGHT_SLOTS * weight;
    footprint.largestTile = LARGEST_SLOT;
  }
  return footprint;
}

const none: Bytes = { device: 0, host: 0, disk: 0 };
