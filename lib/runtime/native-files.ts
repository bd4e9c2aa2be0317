// Lists the files that may be the addon and the GPU back end of this platform. Callers try them in
// order: a package can be installed for another system, or be of another version.
//
//   build/Release                  a build from source
//   @ds/native-linux-x64, ...      platform packages: the addon
//   @ds/native-linux-x64-musl      the same for musl, without Gloo; installed by name
//   @ds/native-linux-x64-cuda13    the same platform: the GPU back end for drivers from 580 on
//   prebuilds/linux-x64, ...       the contents of these packages, in a checkout or a bundle
import { existsSync, readdirSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { packageRoot } from './package-root.js';

const ADDON_FILE = 'ds_native.node';
const GPU_FILE = 'libds_cuda.so';
/** Majors of CUDA that packages are built with; the preferred one comes first. */
const CUDA_MAJORS = [13, 12];

/** Returns the name of this process's platform in package names: "linux-x64". */
export function platformName(): string {
  return `${process.platform}-${process.arch}`;
}

/** Returns the package with the addon of this platform. */
export function platformPackage(): string {
  return `@ds/native-${platformName()}`;
}

/** Returns existing files that may be the addon, in order of preference. */
export function addonCandidates(root = packageRoot()): string[] {
  const files = [
    join(root, 'build', 'Release', ADDON_FILE),
    ...fromPackages(root, [platformName(), `${platformName()}-musl`], ADDON_FILE),
  ];
  return files.filter((file) => existsSync(file));
}

/** Returns existing files that may be the GPU back end of an addon, in order of preference. */
export function gpuLibraryCandidates(addonFile: string, root = packageRoot()): string[] {
  const platforms = CUDA_MAJORS.map((major) => `${platformName()}-cuda${major}`);
  const files = [join(dirname(addonFile), GPU_FILE), ...fromPackages(root, platforms, GPU_FILE)];
  return files.filter((file) => existsSync(file));
}

function fromPackages(root: string, platforms: string[], file: string): string[] {
  const installed = platforms.flatMap((platform) => folderOf(`@ds/native-${platform}`, root));
  const prebuilt = platforms.map((platform) => join(root, 'prebuilds', platform));
  return [...installed, ...prebuilt].map((folder) => join(folder, file));
}

/**
 * Returns the folder of an installed package, as Node resolves its name from the package's root.
 */
function folderOf(name: string, root: string): string[] {
  try {
    return [dirname(require.resolve(`${name}/package.json`, { paths: [root] }))];
  } catch {
    return [];
  }
}

/** Returns "glibc 2.36"; on a system without glibc, the loader's name if it is musl's. */
export function libcVersion(): string {
  const report = process.report as typeof process.report & { excludeNetwork?: boolean };
  report.excludeNetwork = true; // else Node looks up the names of all connections
  const { header } = report.getReport() as unknown as {
    header: { glibcVersionRuntime?: string };
  };
  if (header.glibcVersionRuntime) return `glibc ${header.glibcVersionRuntime}`;
  try {
    return readdirSync('/lib').some((name) => name.startsWith('ld-musl-')) ? 'musl' : 'unknown';
  } catch {
    return 'unknown';
  }
}

const MUSL_COMMAND =
  'install the addon for musl in the version of @ds/native: npm install @ds/native-linux-x64-musl';

/** Returns the fix for the reasons of the dynamic linker; without a reason, no file was found. */
export function loadHint(
  reasons: string,
  platform = platformName(),
  libc: () => string = libcVersion,
): string {
  const build = 'build it from source: npm explore @ds/native -- npm run build:native';
  if (platform.startsWith('win32-'))
    return '@ds/native does not run on Windows itself. Install WSL 2, and run Node.js for Linux in it.';
  if (!/^linux-(x64|arm64)$/.test(platform))
    return `@ds/native ships for Linux on x64 and arm64. For the CPU of a Mac, ${build}.`;
  // Where the C library is musl, package managers install no package that needs glibc.
  if (/ld-linux/.test(reasons) || libc() === 'musl') {
    const cure = platform === 'linux-x64' ? MUSL_COMMAND : build;
    return `The package needs glibc. Use an image with glibc, such as node:22. On Alpine, ${cure}.`;
  }
  const version = /version `GLIBC_([\d.]+)' not found/.exec(reasons)?.[1];
  if (version !== undefined)
    return `The package needs glibc ${version}. Update the system, or ${build}.`;
  if (reasons === '')
    return (
      `Install @ds/native-${platform} in the version of @ds/native. npm leaves it out with ` +
      `--omit=optional, or if another system wrote package-lock.json. Or ${build}.`
    );
  return `Reinstall the package, or ${build}.`;
}
