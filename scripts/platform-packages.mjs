#!/usr/bin/env node
// Lists and writes the packages with compiled files: one for each platform and GPU back end.
//
//   platform-packages.mjs write FOLDER NAME   write package.json, README, LICENSE into FOLDER
//   platform-packages.mjs main FOLDER         write the main package.json for publishing
//   platform-packages.mjs check FILE NAME     refuse a compiled file of another machine
//   platform-packages.mjs release FOLDER TAG  refuse tarballs that are not the packages of a tag
import { copyFileSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = join(dirname(fileURLToPath(import.meta.url)), '..');
const main = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'));

/** ELF's numbers of machines. */
const MACHINES = { x64: 62, arm64: 183 };

/**
 * `cpu`: as npm and Node name it. `libc`: default glibc. `installed`: npm installs it with the main
 * package where system, processor and C library match.
 */
export const PACKAGES = {
  'linux-x64': { cpu: 'x64', installed: true, holds: 'The addon for Linux on x64' },
  'linux-arm64': { cpu: 'arm64', installed: true, holds: 'The addon for Linux on arm64' },
  'linux-x64-cuda13': {
    cpu: 'x64',
    installed: true,
    holds: 'The GPU back end for Linux on x64, NVIDIA drivers from 580 on',
  },
  'linux-x64-cuda12': {
    cpu: 'x64',
    installed: false,
    holds: 'The GPU back end for Linux on x64, NVIDIA drivers from 525 on',
  },
  'linux-x64-musl': {
    cpu: 'x64',
    libc: 'musl',
    installed: false,
    holds: 'The addon for Linux on x64 with musl, such as Alpine, for one process',
  },
};

function packageOf(name) {
  const found = PACKAGES[name];
  if (!found) throw new Error(`expected one of ${Object.keys(PACKAGES).join(', ')}, got ${name}`);
  return found;
}

/** The manifest of a package with compiled files. */
export function platformManifest(name) {
  const { cpu, libc = 'glibc', holds } = packageOf(name);
  const { version, license, repository, homepage, bugs, engines } = main;
  return {
    name: `${main.name}-${name}`,
    version,
    description: `${holds}, used by ${main.name}.`,
    license,
    repository,
    homepage,
    bugs,
    engines,
    os: ['linux'],
    cpu: [cpu],
    libc: [libc],
    main: name.includes('cuda') ? 'libds_cuda.so' : 'ds_native.node',
    type: 'commonjs',
    preferUnplugged: true,
    publishConfig: { access: 'public' },
  };
}

/**
 * The main manifest for publishing. A checkout has no optionalDependencies: npm would ask the
 * registry for packages of a version that is not published yet.
 */
export function mainManifest() {
  const { scripts: _, devDependencies, ...rest } = main;
  const versions = (installed) =>
    Object.fromEntries(
      Object.keys(PACKAGES)
        .filter((name) => PACKAGES[name].installed === installed)
        .map((name) => [`${main.name}-${name}`, main.version]),
    );
  const byName = versions(false);
  return {
    ...rest,
    // npx fetches the build tool, which only a build from source needs.
    scripts: { 'build:native': `npx --yes cmake-js@${devDependencies['cmake-js']} build` },
    optionalDependencies: versions(true),
    // npm refuses another version of these, and Yarn lets the main package read them.
    peerDependencies: byName,
    peerDependenciesMeta: Object.fromEntries(
      Object.keys(byName).map((name) => [name, { optional: true }]),
    ),
    publishConfig: { access: 'public' },
  };
}

const writeManifest = (folder, manifest) =>
  writeFileSync(join(folder, 'package.json'), `${JSON.stringify(manifest, null, 2)}\n`);

function write(folder, name) {
  const manifest = platformManifest(name);
  mkdirSync(folder, { recursive: true });
  writeManifest(folder, manifest);
  for (const file of ['LICENSE', 'NOTICE']) copyFileSync(join(root, file), join(folder, file));
  const text = `${manifest.description} Install [${main.name}](${main.homepage}) instead.`;
  writeFileSync(join(folder, 'README.md'), `# ${manifest.name}\n\n${text}\n`);
}

/** Throws if the ELF file is of another machine than the package. */
export function checkMachine(file, name) {
  const bytes = readFileSync(file).subarray(0, 20);
  const machine = bytes.readUInt32BE(0) === 0x7f454c46 ? bytes.readUInt16LE(18) : 0;
  const { cpu } = packageOf(name);
  if (machine === MACHINES[cpu]) return;
  throw new Error(`${file}: expected ELF machine ${MACHINES[cpu]} (${cpu}), got ${machine}`);
}

/** Throws unless the folder has one tarball of each package, and the tag names their version. */
export function checkRelease(folder, tag) {
  if (tag !== `v${main.version}`) {
    throw new Error(`expected the tag v${main.version} of package.json, got ${tag}`);
  }
  const prefix = main.name.slice(1).replace('/', '-');
  const names = [prefix, ...Object.keys(PACKAGES).map((name) => `${prefix}-${name}`)];
  const expected = names.map((name) => `${name}-${main.version}.tgz`).sort();
  const found = readdirSync(folder).sort();
  if (found.join() === expected.join()) return;
  throw new Error(`expected ${expected.join(', ')}, got ${found.join(', ') || 'nothing'}`);
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const [command, path, name] = process.argv.slice(2);
  if (command === 'write') write(path, name);
  else if (command === 'main') writeManifest(path, mainManifest());
  else if (command === 'check') checkMachine(path, name);
  else if (command === 'release') checkRelease(path, name);
  else throw new Error(`expected write, main, check or release, got ${command}`);
}
