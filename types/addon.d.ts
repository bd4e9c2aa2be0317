// Objects that the native addon returns; its functions are in addon.generated.d.ts.

/** What is known about the machine's GPUs, without opening one. */
export interface GpuProbe {
  /** The file of the GPU back end; empty if none could be opened. */
  library: string;
  deviceCount: number;
  /** 13000 for 13.0; 0 without a driver. */
  driverVersion: number;
  runtimeVersion: number;
  /** Empty when GPUs can be used, else one sentence with versions and the cure. */
  message: string;
}

/** A swap file: how it is served, and what has moved so far. */
export interface SwapFileInfo {
  path: string;
  /** Transfers pass the system's cache by (O_DIRECT). */
  direct: boolean;
  /** "ext4", "tmpfs", ... */
  fileSystem: string;
  /** "io_uring" or "threads". */
  engine: string;
  bytesRead: number;
  bytesWritten: number;
  /** How long streams, or callers, have waited for transfers. */
  secondsWaited: number;
}

/** What a device is. */
export interface DeviceInfo {
  name: string;
  detail: string;
  totalBytes: number;
}

/** Counters of a device's memory. */
export interface MemoryStats {
  inUse: number;
  peakInUse: number;
  reserved: number;
  peakReserved: number;
  cap: number;
  total: number;
  allocations: number;
  liveBuffers: number;
}
