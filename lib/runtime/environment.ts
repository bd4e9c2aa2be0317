// Features of this installation: the addon, devices, and libraries that are opened at run time.
import { DsError } from '../errors.js';
import { addon, addonPath } from './addon.js';
import { device, type GpuProbe, probeGpus, threads } from './device.js';
import { fileEngineName } from './file.js';
import { native } from './native.js';

interface LibraryReport {
  name: string;
  purpose: string;
  /** Path of the library, or null. */
  path: string | null;
}

interface DeviceReport {
  name: string;
  /** Empty if the device could not be opened. */
  description: string;
  totalBytes: number;
  error?: string;
}

export interface EnvironmentReport {
  addon: string;
  /** The GPU back end that is used, or null. */
  gpuLibrary: string | null;
  threads: number;
  /** "io_uring" or "threads". */
  fileEngine: string;
  gpu: GpuProbe;
  devices: DeviceReport[];
  libraries: LibraryReport[];
}

/** The libraries to look for; one of `files` is enough. */
const LIBRARIES = [
  {
    name: 'cuBLASLt',
    purpose: 'matrix products on a GPU',
    files: [
      'libcublasLt.so.13',
      'libcublasLt.so.12',
      'libcublasLt.so',
      '/usr/local/cuda/lib64/libcublasLt.so',
    ],
  },
  { name: 'NCCL', purpose: 'training on several GPUs', files: ['libnccl.so.2'] },
];

/** Returns the report. Opens every GPU. */
export function inspectEnvironment(): EnvironmentReport {
  const gpu = probeGpus();
  const gpus = Array.from({ length: gpu.deviceCount }, (_, i) => `cuda:${i}`);
  return {
    addon: addonPath(),
    gpuLibrary: gpu.library || null,
    threads: threads(),
    fileEngine: fileEngineName(),
    gpu,
    devices: ['cpu', ...gpus].map(inspectDevice),
    libraries: LIBRARIES.map(({ name, purpose, files }) => {
      const path = files.map((file) => native(() => addon.libraryPath(file))).find(Boolean);
      return { name, purpose, path: path ?? null };
    }),
  };
}

function inspectDevice(name: string): DeviceReport {
  try {
    const { info } = device(name);
    const description = `${info.name}, ${info.detail}`;
    return { name, description, totalBytes: info.totalBytes };
  } catch (error) {
    if (!(error instanceof DsError)) throw error;
    return { name, description: '', totalBytes: 0, error: error.message };
  }
}
