// The GPU of `ds plan`: named, found on this machine, or assumed.

import { GPUS, type Gpu, gpuNamed, TOO_OLD } from '../monitor/gpus.js';
import { H200, type Rates, ratesOf } from '../plan/index.js';
import { device, probeGpus } from '../runtime/device.js';
import { required } from '../runtime/required.js';
import { closest } from '../runtime/suggestion.js';
import { refuse } from './argument-error.js';

/** A GPU of a plan. */
export interface PlannedGpu {
  rates: Rates;
  /** Bytes. */
  memory: number;
  /** How it was chosen; undefined for a GPU of the command line. */
  note?: string;
}

const GIB = 2 ** 30;
const ASSUMED = required(GPUS.find(({ key }) => key === 'h200'));

/**
 * Returns the GPU `name` of the table; without a name, the first GPU of this machine, or else an
 * H200. Throws DS_ARGUMENT for an unknown name and for a GPU below compute capability 8.0.
 */
export function plannedGpu(name: string | undefined, found = gpuHere()): PlannedGpu {
  if (name !== undefined) return ofTable(findGpu(name));
  if (!found) {
    const note = `No usable GPU is here: the plan assumes an ${ASSUMED.label}. --gpu names another one.`;
    return { ...ofTable(ASSUMED), note };
  }
  const gpu = gpuNamed(found.name);
  const { totalBytes: memory } = found;
  if (gpu) return { rates: ratesOf(gpu), memory, note: `GPU of this machine: ${found.name}.` };
  const note = `GPU of this machine: ${found.name}. Its rates are unknown: those of an ${H200.name} are used.`;
  return { rates: H200, memory, note };
}

const ofTable = (gpu: Gpu): PlannedGpu => ({ rates: ratesOf(gpu), memory: gpu.memory * GIB });

function findGpu(name: string): Gpu {
  const key = plain(name);
  const gpu = GPUS.find((gpu) => plain(gpu.key) === key);
  if (gpu) return gpu;
  const old = Object.keys(TOO_OLD).find((item) => key.startsWith(item));
  if (old !== undefined) {
    const expected = 'a GPU of compute capability 8.0 or higher, as the kernels need';
    const capability = required(TOO_OLD[old]).toFixed(1);
    return refuse('plan --gpu', expected, `${name} of capability ${capability}`);
  }
  const keys = GPUS.map((gpu) => gpu.key);
  const meant = closest(name, keys);
  const hint = meant ? `Did you mean "${meant}"?` : '--gpu-memory describes another memory.';
  return refuse('plan --gpu', keys.join(', '), JSON.stringify(name), hint);
}

/** "RTX 4090", "rtx-4090" and "rtx4090" are the same. */
const plain = (name: string): string => name.toLowerCase().replace(/[^a-z0-9]/g, '');

/** Name and memory of the first GPU; null without a GPU that works, or without an addon. */
function gpuHere(): { name: string; totalBytes: number } | null {
  try {
    return probeGpus().deviceCount > 0 ? device('cuda:0').info : null;
  } catch {
    return null;
  }
}
