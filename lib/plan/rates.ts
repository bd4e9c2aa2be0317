// Hardware rates for the prediction of step times.

/** Rates of one machine, in bytes or FLOPs per second. */
export interface Rates {
  /** Name of the hardware. */
  name: string;
  /** 16-bit matrix products under sustained load. */
  matmul: number;
  /** Products inside attention, in forward and backward. */
  attention: { forward: number; backward: number };
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
  matmul: 645e12,
  attention: { forward: 185e12, backward: 150e12 },
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

/**
 * Interpolates between measured core counts. Beyond the last one, it scales with the square root.
 */
export function hostAdamRate({ hostAdam }: Rates, cores: number): number {
  const above = hostAdam.findIndex(([measured]) => measured >= cores);
  const [lastCores, last] = hostAdam.at(-1) as readonly [number, number];
  if (above < 0) return last * Math.sqrt(cores / lastCores);
  const [to, high] = hostAdam[above] as readonly [number, number];
  const [from, low] = hostAdam[above - 1] ?? [0, 0];
  return low + ((high - low) * (cores - from)) / (to - from);
}
