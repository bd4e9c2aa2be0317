// Which of the devices that a rank sees is its own.

/**
 * "cpu" without GPUs, else "cuda:N". Where every rank of the machine sees all GPUs, N is the local
 * rank. A rank that sees fewer was given its own by a scheduler (srun --gpus-per-task=1 shows each
 * task one, numbered 0), so ranks go round: N is the local rank modulo the GPUs that are seen. GPUs
 * that two ranks share are refused when the group opens.
 */
export function localDevice(localRank: number, visibleGpus: number): string {
  return visibleGpus > 0 ? `cuda:${localRank % visibleGpus}` : 'cpu';
}
