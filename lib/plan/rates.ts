// How fast a machine is, as far as a plan must know it: rates that were measured, or are given.

/** Rates of one machine; bytes and FLOPs a second. */
export interface Rates {
  /** What the rates are of. */
  name: string;
  /** Products of 16-bit matrices, as they last under load. */
  matmul: number;
  /** Products inside attention, forward and backward. */
  attention: { forward: number; backward: number };
  /** The device's memory, reading and writing. */
  deviceMemory: number;
  /**
   * Adam on the host, which is bound by its memory: all ranks of a machine together, by its cores.
   */
  hostAdam: readonly (readonly [cores: number, bytesPerSecond: number])[];
  /** Copies to the device while as much comes back, and the host's memory is at work: of each. */
  pcie: number;
  /** Reads and writes of a machine's disk while both go on: of each. */
  disk: number;
  /** Collectives between the devices of a machine, bytes of a rank's result. */
  link: number;
}

/**
 * One H200 with PCIe 5 and 16 cores of Sapphire Rapids for each GPU: bench/results, and what its
 * kernels last for. Host rates are those beside copies to and from the device.
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

/** The rate for `cores`, between the measured ones and in proportion beyond them. */
export function hostAdamRate({ hostAdam }: Rates, cores: number): number {
  const above = hostAdam.findIndex(([measured]) => measured >= cores);
  const [lastCores, last] = hostAdam.at(-1) as readonly [number, number];
  if (above < 0) return last * Math.sqrt(cores / lastCores);
  const [to, high] = hostAdam[above] as readonly [number, number];
  const [from, low] = hostAdam[above - 1] ?? [0, 0];
  return low + ((high - low) * (cores - from)) / (to - from);
}
