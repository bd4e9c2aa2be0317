// The native addon's typed contract, implemented by csrc/addon/module.cc and imported by
// lib/runtime only.

/**
 * Handles are numbers; 0 means none. Sizes and offsets are in bytes. Every call may throw a native
 * error.
 */
export interface Addon {
  /** The number of the op headers that it was built from: lib/runtime/interface.generated.ts. */
  opInterface(): number;
  /** Gives the addon the block that op arguments are written into. The array must stay alive. */
  setArguments(block: Float64Array): void;
  /** Runs op `op` with the block's arguments on `stream`. */
  run(op: number, stream: number): void;
  /** Enqueues op `op` on `stream`; its CPU body runs on host threads when the stream reaches it. */
  runOnHost(op: number, stream: number): void;
  /** Microseconds per run of op `op` repeated `count` times below the boundary. */
  timeOp(op: number, stream: number, count: number): number;

  /** Opens device `number` (0 CPU, 1 + i GPU i) and returns its compute stream. */
  open(number: number): number;
  probe(): GpuProbe;
  /** Where the loader finds shared library `name`; empty when it does not. */
  libraryPath(name: string): string;
  deviceInfo(number: number): DeviceInfo;
  memoryStats(number: number): MemoryStats;
  resetPeaks(number: number): void;
  trim(number: number): void;
  setCap(number: number, bytes: number): void;
  setDeterministic(number: number, on: boolean): void;
  synchronizeDevice(number: number): void;
  setThreads(count: number): void;
  getThreads(): number;

  allocate(stream: number, bytes: number): number;
  allocatePinned(number: number, bytes: number): number;
  release(buffer: number): void;
  /** The same memory in another thread's environment: the number of an offer, to be taken once. */
  offerBuffer(buffer: number): number;
  takeBuffer(offer: number): number;
  withdrawBuffer(offer: number): void;
  releaseOn(buffer: number, stream: number): void;
  copy(
    to: number,
    toOffset: number,
    from: number,
    fromOffset: number,
    bytes: number,
    stream: number,
  ): void;
  /** Blocks until `target` holds the bytes. */
  read(buffer: number, offset: number, target: ArrayBufferView, stream: number): void;
  /** Blocks until `source` may change again. */
  write(buffer: number, offset: number, source: ArrayBufferView, stream: number): void;

  createStream(number: number): number;
  releaseStream(stream: number): void;
  createEvent(number: number, timed: boolean): number;
  releaseEvent(event: number): void;
  record(event: number, stream: number): void;
  wait(stream: number, event: number): void;
  done(event: number): boolean;
  synchronizeEvent(event: number): void;
  synchronizeStream(stream: number): void;
  elapsedMs(start: number, end: number): number;

  /** Notes the first arrival of signal `number` from now on; a later one has its default effect. */
  watchSignal(number: number): void;
  unwatchSignal(number: number): void;
  /** The first signal noted; 0 before one. */
  notedSignal(): number;

  /**
   * Writes `head` and then buffer ranges ([handle, offset, bytes, ...], host memory) from byte
   * `offset`; 0 creates or empties the file. Resolves with `crc` (CRC-32C) extended by what was
   * written.
   */
  writeFile(
    path: string,
    offset: number,
    head: Uint8Array,
    segments: Float64Array,
    crc: number,
  ): Promise<number>;
  /**
   * Reads `bytes` at `offset` of the open file `descriptor` into host memory; errors name `path`.
   */
  readFile(
    descriptor: number,
    path: string,
    offset: number,
    bytes: number,
    buffer: number,
    bufferOffset: number,
  ): Promise<void>;
  /** The CRC-32C of the whole of the open file `descriptor`; errors name `path`. */
  checksumFile(descriptor: number, path: string): Promise<number>;
  /** Resolves when a file's contents, or a folder's entries, are on disk. */
  syncPath(path: string): Promise<void>;
  /** Renames unless the new name is taken; resolves with false where it is. */
  renameExclusive(from: string, to: string): Promise<boolean>;
  /**
   * Resolves with whether the lock of the open file was free and now belongs to this descriptor.
   */
  lockFile(descriptor: number): Promise<boolean>;
  /** "io_uring" or "threads". */
  fileEngineName(): string;
  setFileEngine(name: string): void;

  /**
   * A nameless file of `bytes` in `folder`; `tuning`: bytes of a block, requests under way, threads
   * for checksums, then [handle, offset, bytes, ...] of the memory that transfers use.
   */
  openSwapFile(
    folder: string,
    label: string,
    purpose: string,
    bytes: number,
    tuning: Float64Array,
  ): number;
  /** When `stream` gets there, starts a transfer that it does not wait for. */
  startSwap(
    file: number,
    writes: boolean,
    offset: number,
    buffer: number,
    bufferOffset: number,
    bytes: number,
    stream: number,
  ): void;
  /** Later work of `stream` finds no transfer of this memory under way. */
  waitSwap(file: number, buffer: number, bufferOffset: number, bytes: number, stream: number): void;
  swapFileInfo(file: number): SwapFileInfo;
  releaseSwapFile(file: number): void;

  /** Serves a job's key-value store on exactly `host`; port 0 takes a free one. */
  startStore(host: string, port: number, secret: string): number;
  storePort(store: number): number;
  stopStore(store: number): void;
  /** `place` is [rank, size], `timeout` in milliseconds. */
  joinJob(
    host: string,
    port: number,
    secret: string,
    place: Int32Array,
    timeout: number,
  ): Promise<number>;
  /** The same job in another thread's environment: the number of an offer, to be taken once. */
  offerJob(job: number): number;
  takeJob(offer: number): number;
  withdrawJob(offer: number): void;
  /** Throws what made the job fail, once it has. */
  checkJob(job: number): void;
  /** Blocks until this rank's collectives have ended; resolves when every rank has come so far. */
  leaveJob(job: number): Promise<void>;
  closeJob(job: number): void;
  storeSet(job: number, key: string, value: string): Promise<void>;
  storeGet(job: number, key: string, timeout: number): Promise<string>;
  storeAdd(job: number, key: string, step: number): Promise<number>;
  storeCompareSet(job: number, key: string, expected: string, desired: string): Promise<string>;
  storeDelete(job: number, key: string): Promise<boolean>;
  /** One key a line. */
  storeKeys(job: number, prefix: string): Promise<string>;
  storeWaiters(job: number, key: string): Promise<number>;
  /** `ranks` are ranks of the job, this one at place `rank`. */
  openGroup(
    job: number,
    stream: number,
    name: string,
    ranks: Int32Array,
    rank: number,
  ): Promise<number>;
  /** Starts the collective in the block (see csrc/addon/process_group.h) and returns its ticket. */
  startCollective(group: number, stream: number, purpose: string, label: string): number;
  waitCollective(group: number, ticket: number, stream: number): void;
  synchronizeCollective(group: number, ticket: number): void;
  collectiveDone(group: number, ticket: number): boolean;
  /** Hexadecimal. */
  hmacSha256(key: Uint8Array, data: Uint8Array): string;
}

/** What is known about the machine's GPUs, without opening one. */
export interface GpuProbe {
  /** libds_cuda.so lies beside the addon and could be opened. */
  libraryFound: boolean;
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
