// `ds env` reads the processor, io_uring's refusal, packages and caches from files.
import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import {
  findPackage,
  listCacheFolders,
  parseMajorVersion,
} from '../../../lib/launch/machine/files.js';
import { explainUringRefusal } from '../../../lib/launch/machine/io-uring.js';
import { parseArmProcessor, parseFeatures } from '../../../lib/launch/machine/processor.js';
import { libcVersion } from '../../../lib/runtime/native-files.js';

const folder = mkdtempSync(join(tmpdir(), 'machine-'));
afterAll(() => rmSync(folder, { recursive: true }));

const GRAVITON = [
  'processor\t: 0',
  'BogoMIPS\t: 243.75',
  'Features\t: fp asimd evtstrm aes crc32 atomics fphp asimdhp cpuid',
  'CPU implementer\t: 0x41',
  'CPU architecture: 8',
  'CPU variant\t: 0x3',
  'CPU part\t: 0xd0c',
].join('\n');

test('an Arm processor has a name and features', () => {
  expect(parseArmProcessor(GRAVITON)).toBe('Arm Neoverse N1 (Graviton2, Altra)');
  expect(parseFeatures(GRAVITON)).toEqual(['asimd', 'asimdhp', 'fphp', 'crc32']);
});

test('an unknown Arm part keeps its numbers', () => {
  expect(parseArmProcessor('CPU implementer : 0x41\nCPU part : 0xfff')).toBe('Arm part 0xfff');
  expect(parseArmProcessor('CPU implementer : 0x7\nCPU part : 0x1')).toBe(
    'implementer 0x7 part 0x001',
  );
});

test('an x86 processor has no Arm name', () => {
  const text = 'model name\t: AMD EPYC\nflags\t\t: fpu sse4_2 fma avx2 f16c\n';
  expect(parseArmProcessor(text)).toBeNull();
  expect(parseFeatures(text)).toEqual(['avx2', 'fma', 'f16c', 'sse4_2']);
});

const kernel = { release: '6.8.0-31-generic', disabled: '0\n', status: 'Seccomp:\t0\n' };
test.each([
  [{ release: '5.4.0' }, 'Linux 5.4.0 is older than 5.6'],
  [{ release: '4.18.0-553.el8' }, 'Linux 4.18.0-553.el8 is older than 5.6'],
  [{ disabled: '2\n' }, 'the sysctl kernel.io_uring_disabled is 2'],
  [{ disabled: '1\n', status: 'CapEff:\t0000000000000000\n' }, /disabled is 1: only its group/],
  [{ disabled: '1\n', status: 'CapEff:\t000001ffffffffff\n' }, /built without it/],
  [{ disabled: null, status: 'Seccomp:\t2\n' }, /seccomp filter forbids it/],
  [{}, /built without it, or the limit of locked memory/],
])('the report says that io_uring is refused: %j', (facts, reason) => {
  expect(explainUringRefusal({ ...kernel, ...facts })).toEqual(
    typeof reason === 'string' ? reason : expect.stringMatching(reason),
  );
});

test('a file belongs to the nearest package with a name, by its real path', () => {
  const inner = join(folder, 'outer', 'lib', 'inner');
  mkdirSync(inner, { recursive: true });
  writeFileSync(join(folder, 'outer', 'package.json'), '{ "name": "outer", "version": "1.2.3" }');
  writeFileSync(join(folder, 'outer', 'lib', 'package.json'), '{ "type": "module" }');
  writeFileSync(join(inner, 'addon.node'), '');
  symlinkSync(join(inner, 'addon.node'), join(folder, 'link.node'));
  expect(findPackage(join(inner, 'addon.node'))).toBe('outer 1.2.3');
  expect(findPackage(join(folder, 'link.node'))).toBe('outer 1.2.3');
  expect(findPackage(join(folder, 'absent.node'))).toBeNull();
});

test("a library's major version is in its name or in the name behind a link", () => {
  const file = join(folder, 'libcublasLt.so.13.1.0');
  writeFileSync(file, '');
  symlinkSync(file, join(folder, 'libcublasLt.so'));
  expect(parseMajorVersion('/usr/lib/libcublasLt.so.12')).toBe(12);
  expect(parseMajorVersion(join(folder, 'libcublasLt.so'))).toBe(13);
  expect(parseMajorVersion('/usr/lib/libnccl.so')).toBeNull();
});

test('environment variables move the caches', () => {
  const env = { CUDA_CACHE_PATH: folder, HF_HUB_CACHE: join(folder, 'models') };
  expect(listCacheFolders(env)).toEqual([
    { holds: expect.stringContaining('driver'), path: folder, exists: true },
    expect.objectContaining({ path: expect.stringMatching(/\.cache\/ds-native$/) }),
    { holds: 'models of the hub', path: join(folder, 'models'), exists: false },
  ]);
});

test('the C library is named', () => {
  expect(libcVersion()).toMatch(/^(glibc \d+\.\d+|musl|unknown)$/);
});
