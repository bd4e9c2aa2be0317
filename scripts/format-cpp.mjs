// Checks C++ against .clang-format and lists files that differ; --write formats them.
import { spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = join(dirname(fileURLToPath(import.meta.url)), '..');
const binary = join(root, 'node_modules/clang-format/bin/linux_x64/clang-format');
function files() {
  const { stdout } = spawnSync('git', ['ls-files', 'csrc'], { cwd: root, encoding: 'utf8' });
  return stdout.split('\n').filter((file) => /^(?!.*generated).*\.(cc|h|cu|cuh)$/.test(file));
}

if (!existsSync(binary)) {
  console.log('format-cpp: clang-format is not there (npm ci installs it): C++ was not looked at');
} else {
  const how = process.argv.includes('--write') ? ['-i'] : ['--dry-run', '-Werror'];
  const named = files();
  const { status, stderr } = spawnSync(binary, ['--style=file', ...how, ...named], {
    cwd: root,
    encoding: 'utf8',
  });
  process.stderr.write(stderr);
  console.log(`format-cpp: ${named.length} files${status === 0 ? '' : '; run `npm run format`'}`);
  process.exitCode = status === 0 ? 0 : 1;
}
