// Which of the devices that a rank sees is its own.

/**
 * What a rank that asks for any GPU ("cuda"), or for one where there is one ("auto"), calls its
 * device. Where every rank of the machine sees all GPUs, it is that of the local rank. A rank that
 * sees fewer was given its own by a scheduler (srun --gpus-per-task=1 shows each task one, numbered
 * 0), so ranks go round: the local rank modulo the GPUs that are seen. GPUs that two ranks share
 * are refused when the group opens.
 */
export function localDevice(
  wanted: 'auto' | 'cuda',
  localRank: number,
  visibleGpus: number,
): string {
  if (visibleGpus > 0) return `cuda:${localRank % visibleGpus}`;
  return wanted === 'auto' ? 'cpu' : wanted;
}
