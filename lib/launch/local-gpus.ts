// Lists the GPUs of this machine that a job may use, by their names in CUDA_VISIBLE_DEVICES.
import type { GpuProbe } from '../../types/addon.js';
import type { Variables } from '../runtime/job-environment.js';
import { refuse } from './argument-error.js';

/**
 * Returns all usable GPUs. If CUDA_VISIBLE_DEVICES is set, returns its GPUs (numbers or
 * "GPU-<uuid>") in its order. Throws DS_ARGUMENT if a GPU is not usable.
 */
export function listVisibleGpus(env: Variables, probe: GpuProbe): string[] {
  const { CUDA_VISIBLE_DEVICES } = env;
  if (CUDA_VISIBLE_DEVICES === undefined) {
    return Array.from({ length: probe.deviceCount }, (_, gpu) => String(gpu));
  }
  const names = CUDA_VISIBLE_DEVICES.split(',').map((name) => name.trim());
  const end = names.findIndex((name) => name === '' || name === '-1');
  const visible = end < 0 ? names : names.slice(0, end);
  if (visible.length > probe.deviceCount) {
    refuse(
      'CUDA_VISIBLE_DEVICES',
      'GPUs that can be used',
      `${JSON.stringify(CUDA_VISIBLE_DEVICES)}; ${probe.deviceCount} can be used`,
      probe.message,
    );
  }
  return visible;
}
