// scripts/check-gpu-code.mjs: the judgement on recorded containers, and the reading of a real
// library.
import { spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { packageRoot } from '../../lib/runtime/package-root.js';

const root = packageRoot();
const script = join(root, 'scripts', 'check-gpu-code.mjs');

interface Entry {
  architecture: string;
  bytes: number;
  kernels: Record<string, number>;
}

// Two containers of a library with the release's architectures, as the script reads them.
const FILL = '_ZN2ds4cuda11fill_kernelIfEEvPT_S2_m';
const STACK = '_ZN2ds4cuda12stack_kernelEPKvPvm';
const SPANS = '_ZN2ds4cuda26attention_documents_kernelENS0_12DocumentCopyES1_l';
const codes = ['sm_80', 'sm_90a', 'sm_100', 'sm_120', 'compute_90'];
const recordedCodes = (): Entry[][] => [
  codes.map((architecture) => ({ architecture, bytes: 2048, kernels: { [FILL]: 0, [STACK]: 0 } })),
  codes.map((architecture) => ({ architecture, bytes: 4096, kernels: { [SPANS]: 2048 } })),
];

/** Calls functions of the script, which Jest's module system cannot import. */
function call(expression: string): unknown {
  const code = `import('${pathToFileURL(script)}').then((check) =>
    console.log(JSON.stringify(${expression})))`;
  const { stdout, stderr } = spawnSync(process.execPath, ['-e', code], { encoding: 'utf8' });
  return stderr === '' ? JSON.parse(stdout) : stderr;
}
const faults = (containers: Entry[][]) =>
  call(`check.faultsOf(${JSON.stringify(containers)}, ${JSON.stringify(codes)})`) as string[];

test('the list is that of the release in CMakeLists.txt', () => {
  expect(call('check.codesOf(check.releaseList())')).toEqual(codes);
});

test('a complete library has no faults, and a line for each architecture', () => {
  expect(faults(recordedCodes())).toEqual([]);
  const lines = call(`check.summary(${JSON.stringify(recordedCodes())}, ['sm_80', 'compute_90'])`);
  expect(lines).toEqual([
    'sm_80       6144 bytes, 2 containers, 3 kernels, static shared memory up to 2048',
    'compute_90  6144 bytes, 2 containers, 3 kernels',
  ]);
});

test('names an architecture that a source file lacks', () => {
  const containers = recordedCodes();
  containers[1]?.splice(3, 1);
  expect(faults(containers)).toEqual([
    `container 1 (${SPANS}): expected ${codes.join(', ')}, got sm_80, sm_90a, sm_100, compute_90`,
  ]);
});

test('names a kernel that an architecture lacks', () => {
  const containers = recordedCodes();
  delete containers[0]?.[4]?.kernels[STACK];
  expect(faults(containers)).toEqual([`container 0 (${FILL}): compute_90 has no kernel ${STACK}`]);
});

test('refuses static shared memory above 48 KiB, and a library without GPU code', () => {
  const large = { architecture: 'sm_80', bytes: 64, kernels: { [SPANS]: 49_153 } };
  const rest = (recordedCodes()[1] as Entry[]).slice(1);
  expect(faults([[large, ...rest]])).toEqual([
    `${SPANS}: expected 49152 bytes of static shared memory or less, got 49153`,
  ]);
  expect(faults([])).toEqual(['expected GPU code, got a library without it']);
});

const library = join(root, 'build', 'Release', 'libds_cuda.so');
(existsSync(library) ? test : test.skip)('reads a real library, and refuses another list', () => {
  const { status, stdout, stderr } = spawnSync(process.execPath, [script, library, '75-real'], {
    encoding: 'utf8',
  });
  expect(stdout).toMatch(/^sm_75 {7}0 bytes, 0 containers, 0 kernels/m);
  expect(stderr).toMatch(/^container 1 \(_Z\w+\): expected sm_75, got (sm|compute)_/m);
  expect(stderr).not.toContain('has no kernel');
  expect(status).toBe(1);
});
