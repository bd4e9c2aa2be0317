// The sources compile with CUDA 12.5, the oldest supported toolkit: a build with 12.9 runs with
// drivers from 525 on. CMake refuses an older nvcc.
import { spawnSync } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { packageRoot } from '../../lib/runtime/package-root.js';

const FLOOR = 12.5;

/** Functions of the CUDA runtime by the toolkit that introduced them in this form. */
const SINCE: Record<number, string> = {
  10: `DeviceGetAttribute DeviceGetStreamPriorityRange DeviceSynchronize DriverGetVersion
    EventCreate EventCreateWithFlags EventDestroy EventElapsedTime EventQuery EventRecord
    EventSynchronize Free FuncGetAttributes FuncSetAttribute GetDevice GetDeviceCount
    GetDeviceProperties GetErrorName GetErrorString GetLastError GraphExecDestroy GraphLaunch
    HostRegister HostUnregister Malloc MemGetInfo Memcpy MemcpyAsync Memset MemsetAsync
    PointerGetAttributes RuntimeGetVersion SetDevice StreamCreateWithFlags
    StreamCreateWithPriority StreamDestroy StreamEndCapture StreamQuery StreamSynchronize
    StreamBeginCapture StreamWaitEvent`,
  11.2: `FreeAsync MallocFromPoolAsync MemPoolCreate MemPoolDestroy MemPoolGetAttribute
    MemPoolSetAttribute MemPoolTrimTo`,
  11.8: 'LaunchKernelEx',
  12: 'GraphInstantiate', // with three arguments
  12.5: 'GetDriverEntryPointByVersion',
};
const introduced = new Map<string, number>(
  Object.entries(SINCE).flatMap(([version, names]) =>
    names.split(/\s+/).map((name) => [`cuda${name}`, Number(version)] as const),
  ),
);

const root = packageRoot();
const sources = readdirSync(join(root, 'csrc'), { recursive: true, encoding: 'utf8' })
  .filter((name) => /\.(cu|cuh|cc|h)$/.test(name))
  .map((name) => readFileSync(join(root, 'csrc', name), 'utf8'))
  .join('\n')
  .replace(/\/\/.*$/gm, '');

test('every function of the runtime that the sources call is in CUDA 12.5', () => {
  const called = new Set(sources.match(/\bcuda[A-Z]\w+(?= *\()/g));
  expect(called.size).toBeGreaterThan(40);
  const missing = [...called].filter((name) => (introduced.get(name) ?? 99) > FLOOR);
  expect(missing).toEqual([]);
  expect([...introduced.keys()].filter((name) => !called.has(name))).toEqual([]);
});

test('driver entry points are requested with the version of CUDA 12.0', () => {
  const names = new Set(sources.match(/"cu[A-Z][a-z]\w+"/g));
  expect([...names].sort()).toEqual([
    '"cuStreamWaitValue32"',
    '"cuStreamWriteValue32"',
    '"cuTensorMapEncodeTiled"',
  ]);
  for (const [, version] of sources.matchAll(/kSince = (\d+)/g))
    expect(Number(version)).toBeLessThanOrEqual(12000);
});

test('libraries of CUDA 12 and 13 are opened', () => {
  const names = [...new Set(sources.match(/"lib(cublasLt|nccl)\.so[.\d]*"/g))].sort();
  expect(names).toEqual([
    '"libcublasLt.so"',
    '"libcublasLt.so.12"',
    '"libcublasLt.so.13"',
    '"libnccl.so"',
    '"libnccl.so.2"',
  ]);
});

const cmake = spawnSync('cmake', ['--version']).status === 0 ? test : test.skip;
cmake.each([
  ['12.4.131', false],
  ['11.8.89', false],
  ['12.5.40', true],
  ['13.0.88', true],
])('a build with nvcc %s is accepted: %s', (version, accepted) => {
  const file = join(root, 'cmake', 'CudaFloor.cmake');
  const words = [`-DCMAKE_CUDA_COMPILER_VERSION=${version}`, '-P', file];
  const { status, stderr } = spawnSync('cmake', words, { encoding: 'utf8' });
  expect(status === 0).toBe(accepted);
  if (!accepted) expect(stderr).toContain('expected nvcc of CUDA 12.5 or newer');
});
