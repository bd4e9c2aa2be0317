// Devices: the CPU, which always exists, and GPUs, which open on first use.
import type { DeviceInfo, GpuProbe, MemoryStats } from '../../types/addon.js';
import { DsError } from '../errors.js';
import { addon, isKeepingAlgorithms, kernelVariables } from './addon.js';
import { dtypeHint } from './dtype.js';
import { dtypes } from './dtypes.generated.js';
import { formatValue } from './format-value.js';
import { compileNotice } from './gpu-code.js';
import { native } from './native.js';
import { notice } from './notice.js';
import { requireInteger } from './require-number.js';
import { Stream } from './stream.js';
import { algorithmFile, keepAlgorithms, readAlgorithms } from './timed-algorithms.js';

export type { DeviceInfo, GpuProbe, MemoryStats } from '../../types/addon.js';
/** The kinds of devices. */
export type DeviceKind = 'cpu' | 'cuda';

/** A device of this process, one object each; get it from device(). */
export class Device {
  /** The stream of ops that name no other stream. */
  readonly compute: Stream;

  constructor(
    /** "cpu" or "cuda". */
    readonly kind: DeviceKind,
    /** Number of the GPU; 0 for the CPU. */
    readonly index: number,
    /** Native number: 0 for the CPU, 1 + index for a GPU. */
    readonly number: number,
  ) {
    this.compute = new Stream(
      this,
      native(() => addon.open(number)),
      'compute',
    );
  }

  /** "cpu" or "cuda:0". */
  get name(): string {
    return this.kind === 'cpu' ? 'cpu' : `cuda:${this.index}`;
  }

  /** The device's name, details from the driver, and bytes of memory. */
  get info(): DeviceInfo {
    return native(() => addon.deviceInfo(this.number));
  }

  /** Counters of this device's memory in bytes; `liveBuffers` counts the buffers of all devices. */
  get memory(): MemoryStats {
    return native(() => addon.memoryStats(this.number));
  }

  /** Restarts the peaks of `memory` at the current values. */
  resetPeaks(): void {
    native(() => addon.resetPeaks(this.number));
  }

  /**
   * Limits reserved memory, to test whether a program fits a smaller device; 0 removes the limit.
   */
  setMemoryCap(bytes: number): void {
    native(() => addon.setCap(this.number, bytes));
  }

  /** Returns cached memory to the system. */
  trim(): void {
    native(() => addon.trim(this.number));
  }

  /** Chooses matrix algorithms by a fixed rule, so that separate processes agree bit for bit. */
  setDeterministic(on: boolean): void {
    native(() => addon.setDeterministic(this.number, on));
  }

  /** Blocks until all work of this device has finished; throws errors of that work. */
  synchronize(): void {
    native(() => addon.synchronizeDevice(this.number));
  }

  /** Returns "cpu" or "cuda:0". */
  toString(): string {
    return this.name;
  }
}

const opened = new Map<number, Device>();

function open(kind: DeviceKind, index: number): Device {
  const number = kind === 'cpu' ? 0 : 1 + index;
  let existing = opened.get(number);
  if (!existing) {
    existing = new Device(kind, index, number);
    opened.set(number, existing);
    if (kind === 'cuda') {
      noticeCompilation(existing);
      if (isKeepingAlgorithms()) shareAlgorithms(existing);
    }
  }
  return existing;
}

/** Time between two writes of newly timed algorithms, in milliseconds. */
const ALGORITHM_PERIOD = 60_000;

/**
 * Gives a GPU the algorithms that earlier processes timed. Stores the algorithms that this process
 * times: at its end, and once a minute, so that a killed process loses little.
 */
function shareAlgorithms({ number, info }: Device): void {
  const file = algorithmFile(info.name);
  native(() => addon.learnAlgorithms(number, readAlgorithms(file)));
  let seen = '';
  const keep = (): void => {
    const timed = addon.timedAlgorithms(number);
    if (timed !== seen) keepAlgorithms(file, timed);
    seen = timed;
  };
  setInterval(keep, ALGORITHM_PERIOD).unref();
  process.once('exit', keep);
}

/** Prints a notice in the first process of a node if the driver has to compile kernels. */
function noticeCompilation({ name, info: { detail } }: Device): void {
  const { LOCAL_RANK = '0', ...cache } = kernelVariables();
  if (LOCAL_RANK !== '0') return;
  const { library } = probeGpus();
  const text = compileNotice({ name, detail, library }, cache);
  if (text !== null) notice(text);
}

/** Returns facts about GPUs without opening one. */
export function probeGpus(): GpuProbe {
  return native(() => addon.probe());
}

/** Returns the CPU device. */
export function cpu(): Device {
  return open('cpu', 0);
}

/**
 * Returns the device `name`: "cpu", "cuda" or "cuda:N"; "auto" is the first usable GPU, else the
 * CPU. Throws DS_DEVICE if there is no such device.
 */
export function device(name: string | Device = 'auto'): Device {
  const match = findDevice(name);
  if (match) return match;
  throw new DsError({
    code: 'DS_DEVICE',
    op: 'device',
    expected: '"cpu", "cuda", "cuda:N" or "auto"',
    got: formatValue(name),
    hint: '`ds env` prints the devices of this machine.',
  });
}

/**
 * Returns the device `name` for `op`, which also accepts a dtype; the error covers both. Throws
 * DS_DEVICE if it is neither.
 */
export function deviceFor(op: string, name: unknown): Device {
  const match = findDevice(name);
  if (match) return match;
  throw new DsError({
    code: 'DS_DEVICE',
    op,
    expected: `a dtype (${dtypes.join(', ')}) or a device ("cpu", "cuda", "cuda:N", "auto")`,
    got: formatValue(name),
    hint: dtypeHint(name),
  });
}

/** An upper bound of GPU numbers: no machine has more. */
const MAX_GPUS = 2 ** 16;

function findDevice(name: unknown): Device | null {
  if (name instanceof Device) return name;
  if (name === 'cpu') return cpu();
  if (name === 'auto') return probeGpus().deviceCount > 0 ? open('cuda', 0) : cpu();
  const match = typeof name === 'string' ? /^cuda(?::(\d+))?$/.exec(name) : null;
  const number = Number(match?.[1] ?? 0);
  return match && number < MAX_GPUS ? open('cuda', number) : null;
}

/** Returns the number of threads that CPU kernels use. */
export function threads(): number {
  return addon.getThreads();
}

/** Sets the number of CPU threads, including the calling one. Results do not depend on it. */
export function setThreads(count: number): void {
  const threads = requireInteger('setThreads', count, 1);
  native(() => addon.setThreads(threads));
}
