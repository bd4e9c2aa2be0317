// Chooses the GPU of `ds plan`: by name, on this machine, or the default.

import { findGpuByName, GPUS, type Gpu, TOO_OLD } from '../monitor/gpus.js';
import { H200, type Rates, ratesOf } from '../plan/index.js';
import { device, probeGpus } from '../runtime/device.js';
import { required } from '../runtime/required.js';
import { closest } from '../runtime/suggestion.js';
import { refuse } from './argument-error.js';

/** The GPU of a plan. */
interface PlannedGpu {
  rates: Rates;
  /** Memory in bytes. */
  memory: number;
  /** The reason of the choice; undefined for a GPU of the command line. */
  note?: string;
}

const GIB = 2 ** 30;
const ASSUMED = required(GPUS.find(({ key }) => key === 'h200'));

/**
 * Returns the GPU `name` of the table; without a name, the first GPU of this machine, or else an
 * H200. Throws DS_ARGUMENT for an unknown name and for a GPU below compute capability 8.0.
 */
export function choosePlannedGpu(name: string | undefined, localGpu = findLocalGpu()): PlannedGpu {
  if (name !== undefined) return planTableGpu(findGpu(name));
  if (!localGpu) {
    const note = `This machine has no usable GPU: the plan assumes an ${ASSUMED.label}. Choose another one with --gpu.`;
    return { ...planTableGpu(ASSUMED), note };
  }
  const gpu = findGpuByName(localGpu.name);
  const { totalBytes: memory } = localGpu;
  if (gpu) return { rates: ratesOf(gpu), memory, note: `GPU of this machine: ${localGpu.name}.` };
  const note = `GPU of this machine: ${localGpu.name}. Its rates are unknown: the plan uses the rates of an ${H200.name}.`;
  return { rates: H200, memory, note };
}

const planTableGpu = (gpu: Gpu): PlannedGpu => ({ rates: ratesOf(gpu), memory: gpu.memory * GIB });

function findGpu(name: string): Gpu {
  const key = normalizeName(name);
  const gpu = GPUS.find((gpu) => normalizeName(gpu.key) === key);
  if (gpu) return gpu;
  const tooOld = Object.keys(TOO_OLD).find((item) => key.startsWith(item));
  if (tooOld !== undefined) {
    const expected = 'a GPU of compute capability 8.0 or higher, as the kernels need';
    const capability = required(TOO_OLD[tooOld]).toFixed(1);
    return refuse('plan --gpu', expected, `${name} of capability ${capability}`);
  }
  const keys = GPUS.map((gpu) => gpu.key);
  const similar = closest(name, keys);
  const hint = similar
    ? `Did you mean "${similar}"?`
    : 'For another GPU, take the most similar one and set --gpu-memory.';
  return refuse('plan --gpu', keys.join(', '), JSON.stringify(name), hint);
}

/** Removes case and punctuation: "RTX 4090", "rtx-4090" and "rtx4090" are the same. */
const normalizeName = (name: string): string => name.toLowerCase().replace(/[^a-z0-9]/g, '');

/** Returns name and memory of the first GPU; null without a usable GPU or without the addon. */
function findLocalGpu(): { name: string; totalBytes: number } | null {
  try {
    return probeGpus().deviceCount > 0 ? device('cuda:0').info : null;
  } catch {
    return null;
  }
}
