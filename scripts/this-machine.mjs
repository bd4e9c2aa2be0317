// Chooses the back ends of a build for this machine: the CPU, and its GPUs if there are some.
import { execFileSync } from 'node:child_process';

/** Output of a program; null if it is missing or fails. */
function output(command, args) {
  try {
    return execFileSync(command, args, { encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] });
  } catch {
    return null;
  }
}

/** Compute capabilities of the GPUs that the driver shows, such as "9.0". */
export function gpuCapabilities(run = output) {
  const text = run('nvidia-smi', ['--query-gpu=compute_cap', '--format=csv,noheader']) ?? '';
  return [...new Set(text.match(/^\d+\.\d+$/gm) ?? [])];
}

/**
 * GPU code for one capability. PTX, compiled by the driver, serves a GPU that nvcc does not know.
 */
function codeFor(capability, known) {
  const name = capability.replace('.', '');
  if (name === '90') return '90a-real'; // Hopper's kernels need its own instructions
  return known.includes(`sm_${name}`) ? `${name}-real` : '80-virtual';
}

/**
 * CMake options of a build for this machine, and a sentence about it. `cuda`: build for all GPUs.
 * `isBuilt`: the GPU back end was built before, so the whole build is kept up to date.
 */
export function buildForMachine({ cuda, isBuilt }, run = output) {
  if (cuda || isBuilt) return { options: [], note: 'Building the CPU and the GPU back end.' };
  const capabilities = gpuCapabilities(run);
  if (capabilities.length === 0) {
    return {
      options: ['-DDS_CUDA=OFF'],
      note: 'No NVIDIA driver: building the CPU back end only. With --cuda, both are built.',
    };
  }
  const known = run('nvcc', ['--list-gpu-code']) ?? '';
  const codes = [...new Set(capabilities.map((one) => codeFor(one, known)))];
  return {
    options: [`-DDS_CUDA_ARCHS=${codes.join(';')}`],
    note: `Building for compute capability ${capabilities.join(', ')}. With --cuda: for all GPUs.`,
  };
}
