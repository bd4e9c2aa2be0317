// scripts/platform-packages.mjs: manifests of the packages that npm publishes.
import { execFileSync, spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { packageRoot } from '../../lib/runtime/package-root.js';

const root = packageRoot();
const script = join(root, 'scripts', 'platform-packages.mjs');
const folder = mkdtempSync(join(tmpdir(), 'platform-packages-'));
afterAll(() => rmSync(folder, { recursive: true }));

const read = (path: string) => JSON.parse(readFileSync(join(path, 'package.json'), 'utf8'));
const checkout = read(root);

function runCommand(command: string, ...words: string[]) {
  const place = mkdtempSync(join(folder, 'package-'));
  execFileSync(process.execPath, [script, command, place, ...words]);
  return { place, manifest: read(place) };
}

test('the published package names the platform packages in its own version', () => {
  const { manifest } = runCommand('main');
  expect(manifest.optionalDependencies).toEqual({
    '@ds/native-linux-x64': checkout.version,
    '@ds/native-linux-arm64': checkout.version,
    '@ds/native-linux-x64-cuda13': checkout.version,
  });
  expect(manifest.peerDependencies).toEqual({
    '@ds/native-linux-x64-cuda12': checkout.version,
    '@ds/native-linux-x64-musl': checkout.version,
  });
  expect(manifest.peerDependenciesMeta).toEqual({
    '@ds/native-linux-x64-cuda12': { optional: true },
    '@ds/native-linux-x64-musl': { optional: true },
  });
  const tool = `cmake-js@${checkout.devDependencies['cmake-js']}`;
  expect(manifest.scripts).toEqual({ 'build:native': `npx --yes ${tool} build` });
  expect(manifest.devDependencies).toBeUndefined();
  expect(manifest.dependencies).toEqual(checkout.dependencies);
  expect(checkout.optionalDependencies).toBeUndefined();
});

test.each([
  ['linux-x64', 'x64', 'glibc', 'ds_native.node'],
  ['linux-arm64', 'arm64', 'glibc', 'ds_native.node'],
  ['linux-x64-cuda13', 'x64', 'glibc', 'libds_cuda.so'],
  ['linux-x64-cuda12', 'x64', 'glibc', 'libds_cuda.so'],
  ['linux-x64-musl', 'x64', 'musl', 'ds_native.node'],
])('%s installs on its own platform only, and runs no script', (name, cpu, libc, main) => {
  const { place, manifest } = runCommand('write', name);
  expect(manifest).toMatchObject({
    name: `@ds/native-${name}`,
    version: checkout.version,
    os: ['linux'],
    cpu: [cpu],
    libc: [libc],
    main,
    preferUnplugged: true,
    engines: checkout.engines,
    repository: checkout.repository, // provenance compares it with the workflow's repository
  });
  expect(manifest.scripts).toBeUndefined();
  for (const file of ['LICENSE', 'NOTICE', 'README.md'])
    expect(existsSync(join(place, file))).toBe(true);
});

test('a compiled file of another processor is refused', () => {
  const head = Buffer.alloc(64);
  head.write('\x7fELF\x02\x01', 'latin1');
  head.writeUInt16LE(183, 18);
  const file = join(folder, 'arm.node');
  writeFileSync(file, head);
  const check = (name: string) => spawnSync(process.execPath, [script, 'check', file, name]);
  expect(check('linux-arm64').status).toBe(0);
  const { status, stderr } = check('linux-x64');
  expect(status).not.toBe(0);
  expect(stderr.toString()).toContain('expected ELF machine 62 (x64), got 183');
});

test('an unknown name is refused', () => {
  const { stderr } = spawnSync(process.execPath, [script, 'write', folder, 'plan9-mips']);
  expect(stderr.toString()).toContain('expected one of linux-x64, linux-arm64');
});

test('a checkout cannot be published by mistake', () => {
  const { status, stdout } = spawnSync('sh', ['-c', checkout.scripts.prepublishOnly]);
  expect(status).toBe(1);
  expect(stdout.toString()).toContain('scripts/pack');
});
