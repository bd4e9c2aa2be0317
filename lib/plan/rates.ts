// Lists the hardware rates that predictions of step times use.

import { findGpuByName, GPUS, type Gpu } from '../monitor/gpus.js';
import { required } from '../runtime/required.js';

/** FLOPs per second of the products inside attention; causal, half of the scores count. */
interface AttentionRate {
  headDim: number;
  forward: number;
  backward: number;
}

/** Rates of one machine, in bytes or FLOPs per second. */
export interface Rates {
  /** Name of the hardware. */
  name: string;
  /** Whether the rates were measured. Otherwise they are estimates from published figures. */
  isMeasured: boolean;
  /** 16-bit matrix products under sustained load. */
  matmul: number;
  /** f32 matrix products, without TF32. */
  matmul32: number;
  /** Products inside attention, by rising head dim. An entry applies up to the next entry. */
  attention: readonly AttentionRate[];
  /** Device memory, reads plus writes. */
  deviceMemory: number;
  /**
   * Adam on the host by number of cores, for all ranks of a machine together. Host memory limits
   * it.
   */
  hostAdam: readonly (readonly [cores: number, bytesPerSecond: number])[];
  /** PCIe in each direction, with transfers in both directions and busy host memory. */
  pcie: number;
  /** Disk in each direction, with reads and writes at once. */
  disk: number;
  /** Collectives between devices of a machine: bytes of a rank's result per second. */
  link: number;
}

/**
 * One H200 with PCIe 5 and 16 Sapphire Rapids cores per GPU. Values come from bench/results under
 * sustained load. Host rates include concurrent copies to and from the device.
 */
export const H200: Rates = {
  name: 'H200',
  isMeasured: true,
  matmul: 645e12,
  matmul32: 53.75e12,
  // bench/results/attention-wgmma.json, T 1024 and 2048, times 0.9 for sustained load.
  attention: [
    { headDim: 64, forward: 275e12, backward: 235e12 },
    { headDim: 128, forward: 480e12, backward: 370e12 },
  ],
  deviceMemory: 4.27e12,
  hostAdam: [
    [4, 53e9],
    [8, 80e9],
    [16, 117e9],
    [32, 160e9],
  ],
  pcie: 39e9,
  disk: 2e9,
  link: 264e9,
};

const PUBLISHED = required(GPUS.find(({ key }) => key === 'h200'));

/**
 * Returns the rates of a GPU: the measured rates of the H200, or published figures times the
 * fractions that an H200 reaches of its own published figures. The rates of the host are the
 * H200's. Without NVLink, GPUs exchange data over PCIe.
 */
export function ratesOf(gpu: Gpu): Rates {
  if (gpu.key === PUBLISHED.key) return H200;
  const scale = (rate: number, figure: 'half' | 'f32' | 'bandwidth' | 'pcie'): number =>
    (rate * gpu[figure]) / PUBLISHED[figure];
  const pcie = scale(H200.pcie, 'pcie');
  return {
    ...H200,
    name: gpu.label,
    isMeasured: false,
    pcie,
    matmul: scale(H200.matmul, 'half'),
    matmul32: scale(H200.matmul32, 'f32'),
    attention: H200.attention.map(({ headDim, forward, backward }) => ({
      headDim,
      forward: scale(forward, 'half'),
      backward: scale(backward, 'half'),
    })),
    deviceMemory: scale(H200.deviceMemory, 'bandwidth'),
    link: gpu.nvlink === null ? pcie : (H200.link * gpu.nvlink) / required(PUBLISHED.nvlink),
  };
}

/** Returns the rates of a GPU by its driver's name. Unknown GPUs get the rates of the H200. */
export function ratesNamed(name: string): Rates {
  const gpu = findGpuByName(name);
  return gpu ? ratesOf(gpu) : H200;
}

/** Returns the rate of attention for heads of `headDim` channels. */
export function attentionRate({ attention }: Rates, headDim: number): AttentionRate {
  const reached = attention.findLast((rate) => rate.headDim <= headDim);
  return reached ?? required(attention[0]);
}

/**
 * Returns the bytes per second of Adam on `cores` cores, interpolated between measured counts.
 * Beyond the last count, it grows with the square root.
 */
export function hostAdamRate({ hostAdam }: Rates, cores: number): number {
  const above = hostAdam.findIndex(([measured]) => measured >= cores);
  const [lastCores, last] = required(hostAdam.at(-1));
  if (above < 0) return last * Math.sqrt(cores / lastCores);
  const [to, high] = required(hostAdam[above]);
  const [from, low] = hostAdam[above - 1] ?? [0, 0];
  return low + ((high - low) * (cores - from)) / (to - from);
}
