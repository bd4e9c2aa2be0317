// The NUMA node of a GPU, from files of the driver and the kernel.
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';

/**
 * Returns the NUMA node of GPU `name`, as in CUDA_VISIBLE_DEVICES: a number in the order of the PCI
 * bus, or "GPU-<uuid>" (or its beginning). Null if unknown. `root` replaces "/" in tests.
 */
export function gpuNumaNode(name: string, root = '/'): number | null {
  try {
    const folder = join(root, 'proc/driver/nvidia/gpus');
    const addresses = readdirSync(folder).sort();
    const address = /^\d+$/.test(name)
      ? addresses[Number(name)]
      : addresses.find((address) => uuidOf(join(folder, address)).startsWith(name));
    if (address === undefined) return null;
    const file = join(root, 'sys/bus/pci/devices', address.toLowerCase(), 'numa_node');
    const node = Number(readFileSync(file, 'utf8'));
    return Number.isInteger(node) && node >= 0 ? node : null;
  } catch {
    return null;
  }
}

function uuidOf(folder: string): string {
  const text = readFileSync(join(folder, 'information'), 'utf8');
  return /^GPU UUID:\s*(\S+)/m.exec(text)?.[1] ?? '';
}
