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
import {
  type CacheFolder,
  findPackage,
  listCacheFolders,
  parseMajorVersion,
} from './machine/files.js';
import { explainUringRefusal } from './machine/io-uring.js';
import { parseArmProcessor, parseFeatures } from './machine/processor.js';

interface SystemReport {
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
  /** Matrix products with a timed algorithm, by GPU model. */
  timedProducts: KeptAlgorithms[];
}

interface NativeReport extends EnvironmentReport {
  /** "name version" of the package that contains the addon. */
  addonPackage: string | null;
  /** Reason why io_uring cannot be used; null if it is used. */
  uringRefusal: string | null;
  /** Null without a GPU back end. */
  gpuCode: GpuCodeReport | null;
}

interface GpuCodeReport {
  package: string | null;
  /** Architectures in every source file of the library: "sm_90a", "compute_80". */
  architectures: string[];
  /** The code that runs on each GPU; null if no code fits. */
  devices: { name: string; capability: string; code: EmbeddedCode | null; driver: number }[];
  /** The oldest driver branch that runs the library. */
  driver: number;
}

/** Inspects this machine. If the addon does not load, the report contains its error. */
export async function inspectSystem(): Promise<SystemReport> {
  const cpuinfo = readText('/proc/cpuinfo');
  const report: SystemReport = {
    version,
    node: process.versions.node,
    napi: process.versions.napi ?? 'unknown',
    platform: `${process.platform}-${process.arch}`,
    system: findInFile('/etc/os-release', /^PRETTY_NAME="?([^"\n]*)/m) ?? process.platform,
    libc: libcVersion(),
    cpu: {
      model: parseArmProcessor(cpuinfo) ?? cpus()[0]?.model ?? 'unknown',
      logical: cpus().length,
      features: parseFeatures(cpuinfo),
    },
    memory: {
      totalBytes: totalmem(),
      hugePages:
        findInFile('/sys/kernel/mm/transparent_hugepage/enabled', /\[(\w+)\]/) ?? 'unknown',
      lockedLimit: findInFile('/proc/self/limits', /^Max locked memory\s+(\S+)/m) ?? 'unknown',
    },
    native: null,
    caches: listCacheFolders(),
    timedProducts: algorithmFiles(),
  };
  try {
    const { inspectEnvironment } = await import('../runtime/environment.js');
    report.native = addPackages(inspectEnvironment());
  } catch (error) {
    report.error = errorMessage(error);
  }
  return report;
}

function addPackages(report: EnvironmentReport): NativeReport {
  const kernel = {
    release: release(),
    disabled: readText('/proc/sys/kernel/io_uring_disabled') || null,
    status: readText('/proc/self/status'),
  };
  return {
    ...report,
    addonPackage: findPackage(report.addon),
    uringRefusal: report.fileEngine === 'io_uring' ? null : explainUringRefusal(kernel),
    gpuCode: report.gpuLibrary === null ? null : inspectGpuCode(report.gpuLibrary, report),
  };
}

/** Inspects the GPU code of a library. `report` has the devices and the version of the toolkit. */
export function inspectGpuCode(
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
    package: findPackage(library),
    architectures: codes.map(({ architecture }) => architecture),
    devices,
    driver: oldestDriver(runtime),
  };
}

/** Returns the text of a file, or "" if it cannot be read. */
function readText(file: string): string {
  try {
    return readFileSync(file, 'utf8');
  } catch {
    return '';
  }
}

function findInFile(file: string, pattern: RegExp): string | null {
  return pattern.exec(readText(file))?.[1] ?? null;
}

/**
 * Removes the timed algorithms of matrix products; returns a description of the removed algorithms.
 */
export function forgetProducts(folder = algorithmFolder()): string {
  const forgotten = forgetAlgorithms(folder);
  if (forgotten.length === 0) return `no timed products in ${folder}`;
  return forgotten
    .map(({ gpu, products }) => `forgot ${products} timed products of ${gpu}`)
    .join('\n');
}

/** Formats the report as lines of label and text. */
export function formatSystem(report: SystemReport): string {
  const { cpu, memory, native } = report;
  const locked = Number(memory.lockedLimit);
  const limit = Number.isFinite(locked) ? formatBinaryBytes(locked) : memory.lockedLimit;
  const rows: [string, string][] = [
    ['@ds/native', report.version],
    ['node', `${report.node}, Node-API ${report.napi}`],
    ['system', `${report.system}, ${report.platform}, ${report.libc}`],
    ['processor', `${cpu.model}, ${cpu.logical} logical, ${cpu.features.join(' ')}`],
    ['memory', `${formatBinaryBytes(memory.totalBytes)}, huge pages: ${memory.hugePages}`],
    ['locked memory', `limit ${limit}`],
  ];
  if (native) rows.push(...formatNative(native));
  else rows.push(['addon', `does not load. ${report.error}`]);
  for (const { holds, path, exists } of report.caches)
    rows.push(['cache', `${path}, ${holds}${exists ? '' : ' (none yet)'}`]);
  for (const { gpu, products } of report.timedProducts)
    rows.push(['timed products', `${products} of ${gpu} in ${algorithmFolder()}`]);
  const width = Math.max(...rows.map(([label]) => label.length));
  return rows.map(([label, text]) => `${label.padEnd(width)}  ${text}`).join('\n');
}

function formatNative(report: NativeReport): [string, string][] {
  const { gpu, gpuCode } = report;
  const engine = report.uringRefusal
    ? `${report.fileEngine}; no io_uring: ${report.uringRefusal}`
    : report.fileEngine;
  const rows: [string, string][] = [
    ['addon', formatFile(report.addon, report.addonPackage)],
    ['threads', String(report.threads)],
    ['file I/O', engine],
  ];
  for (const { name, description, totalBytes, error } of report.devices) {
    rows.push([name, error ?? `${description}, ${formatBinaryBytes(totalBytes)}`]);
    const deviceCode = gpuCode?.devices.find((device) => device.name === name);
    if (deviceCode) rows.push([`${name} code`, formatCode(deviceCode.code)]);
  }
  rows.push(['GPUs', gpu.message || `${gpu.deviceCount} usable`]);
  if (gpuCode) {
    const driver = Math.max(gpuCode.driver, ...gpuCode.devices.map((device) => device.driver));
    rows.push(
      ['GPU back end', formatFile(report.gpuLibrary ?? '', gpuCode.package)],
      ['GPU code', gpuCode.architectures.join(' ') || 'none in all source files'],
      [
        'driver',
        `${formatVersion(gpu.driverVersion)}, built for ${formatVersion(gpu.runtimeVersion)}: ` +
          `driver ${driver} or newer`,
      ],
    );
  }
  for (const { name, purpose, path } of report.libraries) {
    const major = path === null ? null : parseMajorVersion(path);
    const location = major === null ? path : `${path}, version ${major}`;
    rows.push([name, location ?? `not found; needed for ${purpose}`]);
  }
  return rows;
}

function formatFile(file: string, name: string | null): string {
  return name === null ? file : `${file}, of ${name}`;
}

function formatCode(code: EmbeddedCode | null): string {
  if (code === null) return 'none: this build does not run on this GPU';
  if (code.kind === 'cubin') return `native, ${code.architecture}`;
  return `PTX, ${code.architecture}: the driver compiles kernels at their first use`;
}

/** Formats a version number: 13000 becomes "13.0", 0 becomes "none". */
function formatVersion(version: number): string {
  if (version === 0) return 'none';
  return `${Math.floor(version / 1000)}.${Math.floor((version % 1000) / 10)}`;
}

function formatBinaryBytes(bytes: number): string {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  const power = Math.min(4, Math.floor(Math.log2(Math.max(1, bytes)) / 10));
  return `${(bytes / 1024 ** power).toFixed(power ? 1 : 0)} ${units[power]}`;
}
