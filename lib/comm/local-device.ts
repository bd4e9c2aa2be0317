// Selects a rank's device from the visible GPUs.

/**
 * Returns the device of a rank for any GPU ("cuda"), or a GPU if there is one ("auto"). If every
 * rank of the host sees all GPUs, it is the GPU of the local rank. A rank with fewer visible GPUs
 * was restricted by a scheduler (srun --gpus-per-task=1 shows each task one GPU, number 0), so the
 * index is the local rank modulo the visible GPUs. Opening a group fails if two ranks share a GPU.
 */
export function localDevice(
  wanted: 'auto' | 'cuda',
  localRank: number,
  visibleGpus: number,
): string {
  if (visibleGpus > 0) return `cuda:${localRank % visibleGpus}`;
  return wanted === 'auto' ? 'cpu' : wanted;
}
