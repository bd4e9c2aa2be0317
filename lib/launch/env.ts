// `ds env`: a report of this machine, as text or (with --json) as JSON.

import { readFileSync } from 'node:fs';
import { cpus, release, totalmem } from 'node:os';
import type { EnvironmentReport } from '../runtime/environment.js';
import {
  capabilityOf,
  codeFor,
  commonCode,
  type EmbeddedCode,
  oldestDriver,
  readGpuCode,
} from '../runtime/gpu-code.js';
import { libcVersion } from '../runtime/native-files.js';
import { errorMessage } from '../runtime/system-error.js';
import {
  algorithmFiles,
  algorithmFolder,
  forgetAlgorithms,
  type KeptAlgorithms,
} from '../runtime/timed-algorithms.js';
import { version } from '../version.js';
import { type CacheFolder, cacheFolders, libraryMajor, packageOf } from './machine/files.js';
import { uringRefusal } from './machine/io-uring.js';
import { armProcessor, processorFeatures } from './machine/processor.js';

export interface SystemReport {
  version: string;
  node: string;
  napi: string;
  platform: string;
  system: string;
  /** "glibc 2.36", "musl" or "unknown". */
  libc: string;
  cpu: { model: string; logical: number; features: string[] };
  memory: { totalBytes: number; hugePages: string; lockedLimit: string };
  /** Null if the addon does not load; `error` then has the reason. */
  native: NativeReport | null;
  error?: string;
  caches: CacheFolder[];
  /** Matrix products whose fastest algorithm is known, by GPU model. */
  timedProducts: KeptAlgorithms[];
}

export interface NativeReport extends EnvironmentReport {
  /** "name version" of the package that holds the addon. */
  addonPackage: string | null;
  /** Why io_uring is refused; null if it is used. */
  uringRefusal: string | null;
  /** Null without a GPU back end. */
  gpuCode: GpuCodeReport | null;
}

export interface GpuCodeReport {
  package: string | null;
  /** In every source file of the library: "sm_90a", "compute_80". */
  architectures: string[];
  /** For each GPU, the code that runs; null if it has none. */
  devices: { name: string; capability: string; code: EmbeddedCode | null; driver: number }[];
  /** The oldest driver branch of the library. */
  driver: number;
}

/** Collects everything; an addon that does not load is part of the report, not a failure. */
export async function inspectSystem(): Promise<SystemReport> {
  const cpuinfo = text('/proc/cpuinfo');
  const report: SystemReport = {
    version,
    node: process.versions.node,
    napi: process.versions.napi ?? 'unknown',
    platform: `${process.platform}-${process.arch}`,
    system: firstMatch('/etc/os-release', /^PRETTY_NAME="?([^"\n]*)/m) ?? process.platform,
    libc: libcVersion(),
    cpu: {
      model: armProcessor(cpuinfo) ?? cpus()[0]?.model ?? 'unknown',
      logical: cpus().length,
      features: processorFeatures(cpuinfo),
    },
    memory: {
      totalBytes: totalmem(),
      hugePages:
        firstMatch('/sys/kernel/mm/transparent_hugepage/enabled', /\[(\w+)\]/) ?? 'unknown',
      lockedLimit: firstMatch('/proc/self/limits', /^Max locked memory\s+(\S+)/m) ?? 'unknown',
    },
    native: null,
    caches: cacheFolders(),
    timedProducts: algorithmFiles(),
  };
  try {
    const { inspectEnvironment } = await import('../runtime/environment.js');
    report.native = withPackages(inspectEnvironment());
  } catch (error) {
    report.error = errorMessage(error);
  }
  return report;
}

function withPackages(report: EnvironmentReport): NativeReport {
  const kernel = {
    release: release(),
    disabled: text('/proc/sys/kernel/io_uring_disabled') || null,
    status: text('/proc/self/status'),
  };
  return {
    ...report,
    addonPackage: packageOf(report.addon),
    uringRefusal: report.fileEngine === 'io_uring' ? null : uringRefusal(kernel),
    gpuCode: report.gpuLibrary === null ? null : gpuCode(report.gpuLibrary, report),
  };
}

/** `report` has the devices and the version of the toolkit. */
export function gpuCode(
  library: string,
  report: Pick<EnvironmentReport, 'devices' | 'gpu'>,
): GpuCodeReport {
  const codes = commonCode(readGpuCode(library));
  const runtime = report.gpu.runtimeVersion;
  const devices = report.devices.flatMap(({ name, description }) => {
    const capability = capabilityOf(description);
    if (capability === undefined) return [];
    const code = codeFor(capability, codes);
    return [
      { name, capability, code, driver: oldestDriver(runtime, code ?? undefined, capability) },
    ];
  });
  return {
    package: packageOf(library),
    architectures: codes.map(({ architecture }) => architecture),
    devices,
    driver: oldestDriver(runtime),
  };
}

/** The text of a file; empty if it cannot be read. */
function text(file: string): string {
  try {
    return readFileSync(file, 'utf8');
  } catch {
    return '';
  }
}

function firstMatch(file: string, pattern: RegExp): string | null {
  return pattern.exec(text(file))?.[1] ?? null;
}

/** Removes the timed algorithms of matrix products; returns what it did. */
export function forgetProducts(folder = algorithmFolder()): string {
  const held = forgetAlgorithms(folder);
  if (held.length === 0) return `no timed products in ${folder}`;
  return held.map(({ gpu, products }) => `forgot ${products} timed products of ${gpu}`).join('\n');
}

/** The report as lines of "label  text". */
export function formatSystem(report: SystemReport): string {
  const { cpu, memory, native } = report;
  const locked = Number(memory.lockedLimit);
  const limit = Number.isFinite(locked) ? binary(locked) : memory.lockedLimit;
  const rows: [string, string][] = [
    ['@ds/native', report.version],
    ['node', `${report.node}, Node-API ${report.napi}`],
    ['system', `${report.system}, ${report.platform}, ${report.libc}`],
    ['processor', `${cpu.model}, ${cpu.logical} logical, ${cpu.features.join(' ')}`],
    ['memory', `${binary(memory.totalBytes)}, huge pages: ${memory.hugePages}`],
    ['locked memory', `limit ${limit}`],
  ];
  if (native) rows.push(...nativeRows(native));
  else rows.push(['addon', `does not load. ${report.error}`]);
  for (const { holds, path, exists } of report.caches)
    rows.push(['cache', `${path}, ${holds}${exists ? '' : ' (none yet)'}`]);
  for (const { gpu, products } of report.timedProducts)
    rows.push(['timed products', `${products} of ${gpu} in ${algorithmFolder()}`]);
  const width = Math.max(...rows.map(([label]) => label.length));
  return rows.map(([label, text]) => `${label.padEnd(width)}  ${text}`).join('\n');
}

function nativeRows(report: NativeReport): [string, string][] {
  const { gpu, gpuCode } = report;
  const engine = report.uringRefusal
    ? `${report.fileEngine}; no io_uring: ${report.uringRefusal}`
    : report.fileEngine;
  const rows: [string, string][] = [
    ['addon', withPackage(report.addon, report.addonPackage)],
    ['threads', String(report.threads)],
    ['file I/O', engine],
  ];
  for (const { name, description, totalBytes, error } of report.devices) {
    rows.push([name, error ?? `${description}, ${binary(totalBytes)}`]);
    const own = gpuCode?.devices.find((device) => device.name === name);
    if (own) rows.push([`${name} code`, formatCode(own.code)]);
  }
  rows.push(['GPUs', gpu.message || `${gpu.deviceCount} usable`]);
  if (gpuCode) {
    const driver = Math.max(gpuCode.driver, ...gpuCode.devices.map((device) => device.driver));
    rows.push(
      ['GPU back end', withPackage(report.gpuLibrary ?? '', gpuCode.package)],
      ['GPU code', gpuCode.architectures.join(' ') || 'none in all source files'],
      [
        'driver',
        `${formatVersion(gpu.driverVersion)}, built for ${formatVersion(gpu.runtimeVersion)}: ` +
          `driver ${driver} or newer`,
      ],
    );
  }
  for (const { name, purpose, path } of report.libraries) {
    const major = path === null ? null : libraryMajor(path);
    const found = major === null ? path : `${path}, version ${major}`;
    rows.push([name, found ?? `not found; needed for ${purpose}`]);
  }
  return rows;
}

function withPackage(file: string, name: string | null): string {
  return name === null ? file : `${file}, of ${name}`;
}

function formatCode(code: EmbeddedCode | null): string {
  if (code === null) return 'none: this build does not run on this GPU';
  if (code.kind === 'cubin') return `native, ${code.architecture}`;
  return `PTX, ${code.architecture}: the driver compiles kernels at their first use`;
}

/** 13000 becomes "13.0"; 0 means no version. */
function formatVersion(version: number): string {
  if (version === 0) return 'none';
  return `${Math.floor(version / 1000)}.${Math.floor((version % 1000) / 10)}`;
}

function binary(bytes: number): string {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  const power = Math.min(4, Math.floor(Math.log2(Math.max(1, bytes)) / 10));
  return `${(bytes / 1024 ** power).toFixed(power ? 1 : 0)} ${units[power]}`;
}
