// The installation folder of the package, from any of its compiled forms.
import { existsSync } from 'node:fs';
import { dirname, join } from 'node:path';

/** Returns the package's root folder, from dist/runtime, lib/runtime or build/js/lib/runtime. */
export function packageRoot(): string {
  let folder = __dirname;
  while (!existsSync(join(folder, 'CMakeLists.txt')) && !existsSync(join(folder, 'prebuilds'))) {
    const parent = dirname(folder);
    if (parent === folder) return join(__dirname, '..', '..');
    folder = parent;
  }
  return folder;
}
