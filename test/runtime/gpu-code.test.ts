// lib/runtime/gpu-code.ts reads architectures from an ELF file and matches them with GPUs.
import { existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { inspectGpuCode } from '../../lib/launch/env.js';
import {
  codeFor,
  commonCode,
  compileNotice,
  type EmbeddedCode,
  oldestDriver,
  readGpuCode,
} from '../../lib/runtime/gpu-code.js';
import { packageRoot } from '../../lib/runtime/package-root.js';

const folder = mkdtempSync(join(tmpdir(), 'gpu-code-'));
afterAll(() => rmSync(folder, { recursive: true }));

const code = (architecture: string): EmbeddedCode => ({
  kind: architecture.startsWith('sm') ? 'cubin' : 'ptx',
  architecture,
});

/** An entry of a container, with a payload of 24 bytes. */
function entry({ kind, architecture }: EmbeddedCode): Buffer {
  const head = Buffer.alloc(64 + 24);
  head.writeUInt16LE(kind === 'ptx' ? 1 : 2, 0);
  head.writeUInt32LE(64, 4);
  head.writeBigUInt64LE(24n, 8);
  head.writeUInt32LE(Number(/\d+/.exec(architecture)?.[0]), 28);
  head.writeBigUInt64LE(architecture.endsWith('a') ? 0x108011n : 0x8011n, 40);
  return head;
}

function container(architectures: string[]): Buffer {
  const entries = Buffer.concat(architectures.map((name) => entry(code(name))));
  const head = Buffer.alloc(16);
  head.writeUInt32LE(0xba55ed50, 0);
  head.writeUInt16LE(1, 4);
  head.writeUInt16LE(16, 6);
  head.writeBigUInt64LE(BigInt(entries.length), 8);
  return Buffer.concat([head, entries]);
}

/** An ELF file with the sections .shstrtab and .nv_fatbin. */
function library(name: string, containers: string[][]): string {
  const names = Buffer.from('\0.shstrtab\0.nv_fatbin\0');
  const padding = Buffer.alloc(8);
  const code = Buffer.concat(containers.flatMap((row) => [container(row), padding]));
  const head = Buffer.alloc(64);
  head.write('\x7fELF\x02\x01', 'latin1');
  head.writeBigUInt64LE(BigInt(64 + names.length + code.length), 0x28);
  for (const [at, value] of [
    [0x3a, 64],
    [0x3c, 3],
    [0x3e, 1],
  ] as const)
    head.writeUInt16LE(value, at);
  const section = (start: number, offset: number, bytes: number) => {
    const row = Buffer.alloc(64);
    row.writeUInt32LE(start, 0);
    row.writeBigUInt64LE(BigInt(offset), 24);
    row.writeBigUInt64LE(BigInt(bytes), 32);
    return row;
  };
  const table = [
    section(0, 0, 0),
    section(1, 64, names.length),
    section(11, 64 + names.length, code.length),
  ];
  const file = join(folder, name);
  writeFileSync(file, Buffer.concat([head, names, code, ...table]));
  return file;
}

test('reads the architectures of each container', () => {
  const file = library('two.so', [
    ['sm_90a', 'compute_80'],
    ['sm_80', 'sm_90a', 'compute_80'],
  ]);
  const containers = readGpuCode(file);
  expect(containers).toEqual([
    [code('sm_90a'), code('compute_80')],
    [code('sm_80'), code('sm_90a'), code('compute_80')],
  ]);
  expect(commonCode(containers)).toEqual([code('sm_90a'), code('compute_80')]);
});

test('a library without GPU code has no architectures', () => {
  expect(commonCode(readGpuCode(library('none.so', [])))).toEqual([]);
});

test('refuses a file that is no ELF library', () => {
  const file = join(folder, 'text.so');
  writeFileSync(file, 'text'.repeat(40));
  expect(() => readGpuCode(file)).toThrow(`expected a 64-bit ELF file, got ${file}`);
});

const built = join(packageRoot(), 'build', 'Release', 'libds_cuda.so');
(existsSync(built) ? test : test.skip)('every source file of the build has the same code', () => {
  const containers = readGpuCode(built);
  expect(containers.length).toBeGreaterThan(40);
  const common = commonCode(containers);
  expect(common.length).toBeGreaterThan(0);
  for (const codes of containers) expect(codes).toEqual(common);
});

const ALL = ['sm_80', 'sm_90', 'sm_90a', 'sm_100', 'sm_120', 'compute_90'].map(code);
test.each([
  ['8.0', 'sm_80'],
  ['8.6', 'sm_80'],
  ['8.9', 'sm_80'],
  ['9.0', 'sm_90a'],
  ['10.0', 'sm_100'],
  ['10.3', 'sm_100'],
  ['11.0', 'compute_90'],
  ['12.0', 'sm_120'],
  ['12.1', 'sm_120'],
  ['7.5', null],
])('compute capability %s runs %s', (capability, architecture) => {
  expect(codeFor(capability, ALL)?.architecture ?? null).toBe(architecture);
});

test('without a matching cubin, PTX runs; code of an "a" target runs only on its own capability', () => {
  const codes = ['sm_90a', 'compute_80', 'compute_90a'].map(code);
  expect(codeFor('8.6', codes)).toEqual(code('compute_80'));
  expect(codeFor('12.0', codes)).toEqual(code('compute_80'));
  expect(codeFor('12.0', [code('sm_90a'), code('compute_90a')])).toBeNull();
});

test.each([
  [13000, 'sm_90', '9.0', 580],
  [12090, 'sm_80', '8.6', 525],
  [12090, 'compute_80', '8.6', 575],
  [12050, 'compute_80', '8.6', 555],
  [12090, 'sm_120', '12.0', 570],
  [13010, 'compute_90', '11.0', 590],
])('CUDA %d, %s on %s needs driver %d', (runtime, architecture, capability, driver) => {
  expect(oldestDriver(runtime, code(architecture), capability)).toBe(driver);
});

test('the report names the code and the driver of each GPU', () => {
  const gpu = {
    library: 'report.so',
    deviceCount: 2,
    driverVersion: 13000,
    runtimeVersion: 13000,
    message: '',
  };
  const device = (name: string, description: string) => ({ name, description, totalBytes: 1 });
  const devices = [
    device('cpu', '4 threads'),
    device('cuda:0', 'NVIDIA H200, compute capability 9.0, driver CUDA 13.0'),
    device('cuda:1', 'NVIDIA RTX 3090, compute capability 8.6, driver CUDA 13.0'),
  ];
  const file = library('report.so', [['sm_90a', 'compute_80']]);
  expect(inspectGpuCode(file, { gpu, devices })).toEqual({
    package: null,
    architectures: ['sm_90a', 'compute_80'],
    driver: 580,
    devices: [
      { name: 'cuda:0', capability: '9.0', code: code('sm_90a'), driver: 580 },
      { name: 'cuda:1', capability: '8.6', code: code('compute_80'), driver: 580 },
    ],
  });
});

describe('the notice that the driver compiles kernels', () => {
  const detail = 'compute capability 8.6, 82 multiprocessors';
  const cache = join(folder, 'ComputeCache');
  const env = { CUDA_CACHE_PATH: cache };
  const gpu = { name: 'cuda:0', detail, library: library('ptx.so', [['sm_90a', 'compute_80']]) };

  test('names the GPU and the folder that keeps the kernels', () => {
    expect(compileNotice(gpu, env)).toBe(
      'This build has no native code for cuda:0 (compute capability 8.6). The driver compiles ' +
        `kernels at their first use, which takes minutes; it keeps them in ${cache}.`,
    );
    expect(compileNotice(gpu, { ...env, CUDA_CACHE_DISABLE: '1' })).toMatch(/in each process\.$/);
  });

  test('is not printed for native code, for a GPU without any code, or a CPU', () => {
    expect(compileNotice({ ...gpu, detail: 'compute capability 9.0' }, env)).toBeNull();
    expect(compileNotice({ ...gpu, detail: 'compute capability 7.5' }, env)).toBeNull();
    expect(compileNotice({ ...gpu, detail: '4 threads' }, env)).toBeNull();
  });

  test('is not printed again once the driver keeps kernels', () => {
    const filled = join(folder, 'FilledCache');
    mkdirSync(filled);
    expect(compileNotice(gpu, { CUDA_CACHE_PATH: filled })).not.toBeNull();
    writeFileSync(join(filled, 'index'), '');
    expect(compileNotice(gpu, { CUDA_CACHE_PATH: filled })).toBeNull();
  });
});
