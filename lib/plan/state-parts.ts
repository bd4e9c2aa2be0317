// Divides the trained parameters of a rank by the strategies that keep their state.
import { dtypeSize } from '../runtime/dtype.js';
import { tileSize } from '../zero/state/tiles.js';
import {
  chooseMasters,
  computeFootprint,
  type Footprint,
  type ParameterBytes,
  type PlacementName,
  type StateChoice,
} from './footprint.js';
import type { Elements, ModelSizes } from './model-sizes.js';
import type { Setup } from './setup.js';

/** Trained parameters of one dtype with one choice of strategies. */
export interface StatePart {
  placement: PlacementName;
  /** Elements on this rank. */
  count: number;
  /** Elements of the largest tile. */
  tile: number;
  /** Bytes of a gradient element. */
  gradient: number;
  footprint: Footprint;
}

/** Returns the bytes of an element in the engine's compute dtype. */
export const elementBytes = ({ precision }: Setup): number => (precision === 'fp32' ? 4 : 2);

/**
 * Returns the mean bytes of an element, over elements in the engine's dtype and in fixed dtypes.
 */
export function meanBytes({ count, inFixedDtype }: Elements, setup: Setup): number {
  if (inFixedDtype.count === 0) return elementBytes(setup);
  return ((count - inFixedDtype.count) * elementBytes(setup) + inFixedDtype.bytes) / count;
}

/** Returns the fraction of the trained parameters that a rank updates. */
export const updatedShare = ({ stage, ranks }: Setup): number => (stage === 0 ? 1 : 1 / ranks);

/** Returns the elements of the largest unit on a rank. */
export const largestUnit = ({ root, block }: { root: number; block: number }, setup: Setup) =>
  Math.max(root, block) * updatedShare(setup);

/**
 * Returns the elements of each part of a unit that is divided into equal parts of at most `size`.
 */
export const largestPart = (unit: number, size: number): number =>
  unit / Math.max(1, Math.ceil(unit / size));

/** The engine's dtype, or a fixed dtype. */
interface DTypeBytes extends ParameterBytes {
  isFixed: boolean;
}

function engineDTypeBytes(setup: Setup): DTypeBytes {
  const weight = elementBytes(setup);
  const gradient = setup.wideGradients ? dtypeSize('f32') : weight;
  return { weight, gradient, state: setup.stateBytes, isFixed: false };
}

/** Returns the strategies for state at `placement` of parameters in the engine's dtype. */
export function chooseStrategies(placement: PlacementName, setup: Setup): StateChoice {
  const { optimizer, precision, canSplit, weightsOnDisk } = setup;
  const weights = setup.weights === 'device' ? 'device' : weightsOnDisk ? 'disk' : 'host';
  const splits = canSplit && precision === 'bf16' && weights !== 'disk';
  const speculates = optimizer === 'cpu' && setup.speculates;
  return {
    placement,
    masters: chooseMasters(placement, { splits, speculates }),
    weights,
    speculates,
  };
}

/** Returns the footprint of a parameter. Default: of a parameter in the engine's dtype. */
export function footprintIn(
  placement: PlacementName,
  setup: Setup,
  { isFixed, ...bytes }: DTypeBytes = engineDTypeBytes(setup),
): Footprint {
  const choice = chooseStrategies(placement, setup);
  const dtypeChoice: StateChoice = isFixed ? { ...choice, masters: 'f32' } : choice;
  return computeFootprint(dtypeChoice, bytes, setup.slots);
}

/**
 * Returns fractions of the state by placement. `slack`: the fraction that may be on the device or
 * on the host.
 */
function divideState(
  { optimizer, ratio, gpuShare }: Setup,
  slack: number,
): [PlacementName, number][] {
  if (optimizer === 'device') return [['device', 1]];
  const away = ratio === 1 ? 1 : Math.max(0, ratio - slack);
  const here = ['device', Math.max(0, 1 - ratio - slack)] as [PlacementName, number];
  if (optimizer === 'nvme') return [here, ['nvme', away]];
  return [here, ['streamed', away * gpuShare], ['host', away * (1 - gpuShare)]];
}

/**
 * Returns the parts of a rank's state. `slack`: the fraction of the parameters that may be on the
 * device or on the host, because offload_optimizer.ratio divides whole units.
 */
export function statePartsOf({ trained }: ModelSizes, setup: Setup, slack = 0): StatePart[] {
  const { count, inFixedDtype } = trained;
  const fixed = inFixedDtype.bytes / inFixedDtype.count;
  const dtypes = [
    { elements: count - inFixedDtype.count, bytes: engineDTypeBytes(setup) },
    {
      elements: inFixedDtype.count,
      bytes: { weight: fixed, gradient: fixed, state: setup.stateBytes, isFixed: true },
    },
  ];
  return dtypes.flatMap(({ elements, bytes }) =>
    divideState(setup, slack).flatMap(([placement, fraction]): StatePart[] => {
      if (elements * fraction === 0) return [];
      const footprint = footprintIn(placement, setup, bytes);
      const size = Math.min(tileSize(setup.subGroup), footprint.largestTile);
      const units = [trained.root, trained.block].map(
        (unit) => (unit * elements * updatedShare(setup)) / count,
      );
      const tile = Math.max(...units.map((unit) => largestPart(unit, size)));
      const part = { placement, tile, gradient: bytes.gradient, footprint };
      return [{ ...part, count: elements * fraction * updatedShare(setup) }];
    }),
  );
}
