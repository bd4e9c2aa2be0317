// GPU code in libds_cuda.so: architectures, the GPUs that they serve, the driver that they need.
// nvcc stores one container for each source file in the ELF section .nv_fatbin. A container holds
// cubins (machine code) and PTX (compiled by the driver at the first use).
import { closeSync, openSync, readdirSync, readSync } from 'node:fs';
import { homedir } from 'node:os';
import { join } from 'node:path';

export interface EmbeddedCode {
  kind: 'cubin' | 'ptx';
  /** As nvcc names it: "sm_90a" for a cubin, "compute_80" for PTX. */
  architecture: string;
}

const CONTAINER = 0xba55ed50;
const PTX = 1;
const CUBIN = 2;
/** Flag of targets such as sm_90a. Their code runs on one compute capability only. */
const ONE_CAPABILITY = 0x10_0000n;

/** One cubin or PTX of a container. nvcc may have compressed its bytes by Zstandard. */
interface GpuEntry extends EmbeddedCode {
  payload: Buffer;
  /** Number of bytes after decompression. */
  unpacked: number;
}

/** Returns the code of each container. Throws Error if the file is no 64-bit little-endian ELF. */
export function readGpuCode(file: string): EmbeddedCode[][] {
  return readGpuEntries(file).map((entries) =>
    entries.map(({ kind, architecture }) => ({ kind, architecture })),
  );
}

/** Returns the entries of each container. Throws as `readGpuCode()`. */
export function readGpuEntries(file: string): GpuEntry[][] {
  const section = readSection(file, '.nv_fatbin');
  const containers: GpuEntry[][] = [];
  for (let at = 0; at + 16 <= section.length; ) {
    if (section.readUInt32LE(at) !== CONTAINER) {
      at += 8; // padding
      continue;
    }
    const begin = at + section.readUInt16LE(at + 6);
    const end = begin + Number(section.readBigUInt64LE(at + 8));
    containers.push(readEntries(section.subarray(begin, end)));
    at = end;
  }
  return containers;
}

function readEntries(bytes: Buffer): GpuEntry[] {
  const entries: GpuEntry[] = [];
  for (let at = 0; at + 64 <= bytes.length; ) {
    const kind = bytes.readUInt16LE(at);
    const begin = at + bytes.readUInt32LE(at + 4);
    const end = begin + Number(bytes.readBigUInt64LE(at + 8));
    const packed = bytes.readUInt32LE(at + 16);
    const payload = bytes.subarray(begin, packed > 0 ? begin + packed : end);
    const unpacked = packed > 0 ? Number(bytes.readBigUInt64LE(at + 56)) : payload.length;
    const suffix = bytes.readBigUInt64LE(at + 40) & ONE_CAPABILITY ? 'a' : '';
    const name = `${bytes.readUInt32LE(at + 28)}${suffix}`;
    if (kind === CUBIN)
      entries.push({ kind: 'cubin', architecture: `sm_${name}`, payload, unpacked });
    if (kind === PTX)
      entries.push({ kind: 'ptx', architecture: `compute_${name}`, payload, unpacked });
    at = end;
  }
  return entries;
}

type Read = (offset: number, bytes: number) => Buffer;

/** Returns the sections of a 64-bit little-endian ELF file; null for another file. */
export function elfSections(read: Read): { name: string; offset: number; bytes: number }[] | null {
  const head = read(0, 64);
  if (head.length < 64 || head.readUInt32BE(0) !== 0x7f454c46 || head.readUInt16LE(4) !== 0x0102)
    return null;
  const [size, count, nameTable] = [0x3a, 0x3c, 0x3e].map((at) => head.readUInt16LE(at)) as [
    number,
    number,
    number,
  ];
  const table = read(Number(head.readBigUInt64LE(0x28)), size * count);
  const section = (index: number) => {
    const at = index * size;
    const [offset, bytes] = [24, 32].map((field) => Number(table.readBigUInt64LE(at + field)));
    return { name: table.readUInt32LE(at), offset: offset as number, bytes: bytes as number };
  };
  const names = section(nameTable);
  const text = read(names.offset, names.bytes);
  return Array.from({ length: count }, (_, i) => {
    const { name: start, ...rest } = section(i);
    return { name: text.toString('latin1', start, text.indexOf(0, start)), ...rest };
  });
}

function readSection(file: string, name: string): Buffer {
  const descriptor = openSync(file, 'r');
  try {
    const read = (offset: number, bytes: number) => {
      const out = Buffer.alloc(bytes);
      return out.subarray(0, readSync(descriptor, out, 0, bytes, offset));
    };
    const sections = elfSections(read);
    if (sections === null) throw new Error(`expected a 64-bit ELF file, got ${file}`);
    const found = sections.find((section) => section.name === name);
    return found ? read(found.offset, found.bytes) : Buffer.alloc(0);
  } finally {
    closeSync(descriptor);
  }
}

/** Returns the code that every container has: a kernel of any source file runs on these GPUs. */
export function commonCode(containers: EmbeddedCode[][]): EmbeddedCode[] {
  const [first = [], ...rest] = containers;
  return first.filter(({ architecture }) =>
    rest.every((codes) => codes.some((code) => code.architecture === architecture)),
  );
}

/**
 * Returns the code that the driver selects for a compute capability such as "8.6"; null if no code
 * runs there. A cubin runs on the same major and the same or a higher minor number. PTX runs on the
 * same or a higher capability. The driver prefers the closest cubin.
 */
export function codeFor(capability: string, codes: EmbeddedCode[]): EmbeddedCode | null {
  const wanted = Number(capability.replace('.', ''));
  const fitting = codes.filter(({ kind, architecture }) => {
    const number = numberOf(architecture);
    if (architecture.endsWith('a')) return number === wanted;
    if (kind === 'ptx') return number <= wanted;
    return number <= wanted && Math.floor(number / 10) === Math.floor(wanted / 10);
  });
  const order = (code: EmbeddedCode) =>
    (code.kind === 'cubin' ? 1e6 : 0) + 10 * numberOf(code.architecture) + code.architecture.length;
  return fitting.sort((a, b) => order(b) - order(a))[0] ?? null;
}

/** Returns the number of an architecture: 90 for "sm_90a". */
function numberOf(architecture: string): number {
  return Number(/\d+/.exec(architecture)?.[0] ?? 0);
}

/** CUDA releases, and the oldest driver branches that compile their PTX. */
const BRANCHES: [cuda: number, driver: number][] = [
  [13020, 595],
  [13010, 590],
  [13000, 580],
  [12090, 575],
  [12080, 570],
  [12060, 560],
  [12050, 555],
];
/** The first driver branch for compute capability 10.0 and higher. */
const BLACKWELL = 570;

/**
 * Returns the oldest driver branch for a library of CUDA `runtime` (13000 for 13.0). A cubin runs
 * with every driver of the same CUDA major. PTX needs the branch of the toolkit. Without `code`,
 * returns the branch of the CUDA major.
 */
export function oldestDriver(runtime: number, code?: EmbeddedCode, capability = '0.0'): number {
  const major = runtime >= 13000 ? 580 : 525;
  const compiled = BRANCHES.find(([cuda]) => cuda <= runtime)?.[1] ?? major;
  const floor = code?.kind === 'ptx' ? compiled : major;
  return Number.parseInt(capability, 10) >= 10 ? Math.max(floor, BLACKWELL) : floor;
}

/** Variables of the driver's cache. */
export interface CacheVariables {
  CUDA_CACHE_PATH?: string | undefined;
  CUDA_CACHE_DISABLE?: string | undefined;
}

/** Returns the folder in which the driver keeps kernels that it compiled. */
export function kernelCache(env: CacheVariables): string {
  return env.CUDA_CACHE_PATH || join(homedir(), '.nv', 'ComputeCache');
}

/** Returns the number in "compute capability 9.0"; undefined if the text has none. */
export function capabilityOf(description: string): string | undefined {
  return /compute capability (\d+\.\d+)/.exec(description)?.[1];
}

/**
 * Returns a notice if the driver has to compile kernels for a GPU, and has not compiled any yet:
 * its cache is empty. `detail` names the compute capability.
 */
export function compileNotice(
  gpu: { name: string; detail: string; library: string },
  env: CacheVariables,
): string | null {
  const capability = capabilityOf(gpu.detail);
  const cache = kernelCache(env);
  if (capability === undefined || hasFiles(cache)) return null;
  if (codeFor(capability, commonCode(readGpuCode(gpu.library)))?.kind !== 'ptx') return null;
  const kept =
    env.CUDA_CACHE_DISABLE === '1'
      ? 'CUDA_CACHE_DISABLE=1 makes it compile them in each process'
      : `it keeps them in ${cache}`;
  return (
    `This build has no native code for ${gpu.name} (compute capability ${capability}). The driver ` +
    `compiles kernels at their first use, which takes minutes; ${kept}.`
  );
}

function hasFiles(folder: string): boolean {
  try {
    return readdirSync(folder).length > 0;
  } catch {
    return false;
  }
}
