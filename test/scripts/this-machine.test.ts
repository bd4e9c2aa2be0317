// scripts/this-machine.mjs chooses the back ends of a build by the driver, the GPUs and nvcc.
import { execFileSync } from 'node:child_process';
import { chmodSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { packageRoot } from '../../lib/runtime/package-root.js';

const folder = mkdtempSync(join(tmpdir(), 'this-machine-'));
afterAll(() => rmSync(folder, { recursive: true }));

interface Machine {
  'nvidia-smi'?: string;
  nvcc?: string;
}

/** Options of a build on a machine with these programs, which print the given text. */
function choose(machine: Machine, request: { cuda?: boolean; isBuilt?: boolean } = {}) {
  const bin = mkdtempSync(join(folder, 'bin-'));
  for (const [name, text] of Object.entries(machine)) {
    writeFileSync(join(bin, name), `#!/bin/sh\necho '${text}'\n`);
    chmodSync(join(bin, name), 0o755);
  }
  const module = join(packageRoot(), 'scripts/this-machine.mjs');
  const program = `import { buildForMachine } from '${module}';
    console.log(JSON.stringify(buildForMachine(${JSON.stringify(request)})))`;
  const args = ['--input-type=module', '-e', program];
  const text = execFileSync(process.execPath, args, { env: { PATH: bin }, encoding: 'utf8' });
  return JSON.parse(text) as { options: string[]; note: string };
}

test('without a driver, only the CPU back end is built', () => {
  const { options, note } = choose({ nvcc: 'sm_90' });
  expect(options).toEqual(['-DDS_CUDA=OFF']);
  expect(note).toContain('--cuda');
});

test('with a driver, code is built for the GPUs of the machine', () => {
  const nvcc = 'sm_80\nsm_86\nsm_90';
  expect(choose({ nvcc, 'nvidia-smi': '8.6\n8.6' }).options).toEqual(['-DDS_CUDA_ARCHS=86-real']);
  expect(choose({ nvcc, 'nvidia-smi': '9.0' }).options).toEqual(['-DDS_CUDA_ARCHS=90a-real']);
  expect(choose({ nvcc, 'nvidia-smi': '8.6\n9.0' }).options).toEqual([
    '-DDS_CUDA_ARCHS=86-real;90a-real',
  ]);
});

test('a GPU unknown to nvcc gets PTX', () => {
  const { options } = choose({ nvcc: 'sm_80\nsm_90', 'nvidia-smi': '12.0' });
  expect(options).toEqual(['-DDS_CUDA_ARCHS=80-virtual']);
});

test('a driver without a GPU counts as no driver', () => {
  expect(choose({ 'nvidia-smi': 'No devices were found' }).options).toEqual(['-DDS_CUDA=OFF']);
});

test('--cuda and an earlier whole build keep all back ends', () => {
  expect(choose({}, { cuda: true }).options).toEqual([]);
  expect(choose({}, { isBuilt: true }).options).toEqual([]);
});
