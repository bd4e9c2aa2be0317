// Writes generated files that differ. With --check, lists them and fails.
import { readFileSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = join(dirname(fileURLToPath(import.meta.url)), '..');

function current(file) {
  try {
    return readFileSync(join(root, file), 'utf8');
  } catch {
    return null; // A missing file is drift like any other.
  }
}

/** `targets`: the text of each file, by its path in the checkout. */
export function writeGenerated(targets) {
  const stale = Object.keys(targets).filter((file) => current(file) !== targets[file]);
  if (!process.argv.includes('--check')) {
    for (const file of stale) writeFileSync(join(root, file), targets[file]);
  } else if (stale.length > 0) {
    console.error(`out of date: ${stale.join(', ')}. Run \`npm run gen\` and commit it.`);
    process.exitCode = 1;
  }
}
