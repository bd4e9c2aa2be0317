// `ds env`: a report of this machine, as text or (with --json) as JSON.

import { readFileSync } from 'node:fs';
import { cpus, totalmem } from 'node:os';
import type { EnvironmentReport } from '../runtime/environment.js';
import { errorMessage } from '../runtime/system-error.js';
import { version } from '../version.js';

/** Instruction sets that the CPU back end uses or may come to use. */
const FEATURES = [
  'avx2',
  'fma',
  'f16c',
  'sse4_2',
  'avx512f',
  'avx512_bf16',
  'amx_bf16',
  'asimd',
  'bf16',
];

export interface SystemReport {
  version: string;
  node: string;
  napi: string;
  platform: string;
  system: string;
  cpu: { model: string; logical: number; features: string[] };
  memory: { totalBytes: number; hugePages: string; lockedLimit: string };
  /** Null if the addon does not load; `error` then has the reason. */
  native: EnvironmentReport | null;
  error?: string;
}

/** Collects everything; an addon that does not load is part of the report, not a failure. */
export async function inspectSystem(): Promise<SystemReport> {
  const report: SystemReport = {
    version,
    node: process.versions.node,
    napi: process.versions.napi ?? 'unknown',
    platform: `${process.platform}-${process.arch}`,
    system: firstMatch('/etc/os-release', /^PRETTY_NAME="?([^"\n]*)/m) ?? process.platform,
    cpu: {
      model: cpus()[0]?.model ?? 'unknown',
      logical: cpus().length,
      features: cpuFeatures(),
    },
    memory: {
      totalBytes: totalmem(),
      hugePages:
        firstMatch('/sys/kernel/mm/transparent_hugepage/enabled', /\[(\w+)\]/) ?? 'unknown',
      lockedLimit: firstMatch('/proc/self/limits', /^Max locked memory\s+(\S+)/m) ?? 'unknown',
    },
    native: null,
  };
  try {
    const { inspectEnvironment } = await import('../runtime/environment.js');
    report.native = inspectEnvironment();
  } catch (error) {
    report.error = errorMessage(error);
  }
  return report;
}

function cpuFeatures(): string[] {
  const flags = firstMatch('/proc/cpuinfo', /^(?:flags|Features)\s*:\s*(.*)$/m) ?? '';
  const present = new Set(flags.split(' '));
  return FEATURES.filter((feature) => present.has(feature));
}

function firstMatch(file: string, pattern: RegExp): string | null {
  try {
    return pattern.exec(readFileSync(file, 'utf8'))?.[1] ?? null;
  } catch {
    return null;
  }
}

/** The report as lines of "label  text". */
export function formatSystem(report: SystemReport): string {
  const { cpu, memory, native } = report;
  const locked = Number(memory.lockedLimit);
  const limit = Number.isFinite(locked) ? binary(locked) : memory.lockedLimit;
  const rows: [string, string][] = [
    ['@ds/native', report.version],
    ['node', `${report.node}, Node-API ${report.napi}`],
    ['system', `${report.system}, ${report.platform}`],
    ['processor', `${cpu.model}, ${cpu.logical} logical, ${cpu.features.join(' ')}`],
    ['memory', `${binary(memory.totalBytes)}, huge pages: ${memory.hugePages}`],
    ['locked memory', `limit ${limit}`],
  ];
  if (native) rows.push(...nativeRows(native));
  else rows.push(['addon', `does not load. ${report.error}`]);
  const width = Math.max(...rows.map(([label]) => label.length));
  return rows.map(([label, text]) => `${label.padEnd(width)}  ${text}`).join('\n');
}

function nativeRows(report: EnvironmentReport): [string, string][] {
  const { gpu } = report;
  const rows: [string, string][] = [
    ['addon', report.addon],
    ['threads', String(report.threads)],
    ['file I/O', report.fileEngine],
  ];
  for (const { name, description, totalBytes, error } of report.devices) {
    rows.push([name, error ?? `${description}, ${binary(totalBytes)}`]);
  }
  rows.push(['GPUs', gpu.message || `${gpu.deviceCount} usable`]);
  if (gpu.libraryFound) {
    rows.push(['driver', `${dotted(gpu.driverVersion)}, built for ${dotted(gpu.runtimeVersion)}`]);
  }
  for (const { name, purpose, path } of report.libraries) {
    rows.push([name, path ?? `not found; needed for ${purpose}`]);
  }
  return rows;
}

/** 13000 becomes "13.0"; 0 means no version. */
function dotted(version: number): string {
  if (version === 0) return 'none';
  return `${Math.floor(version / 1000)}.${Math.floor((version % 1000) / 10)}`;
}

function binary(bytes: number): string {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  const power = Math.min(4, Math.floor(Math.log2(Math.max(1, bytes)) / 10));
  return `${(bytes / 1024 ** power).toFixed(power ? 1 : 0)} ${units[power]}`;
}
