// Generates the types, the editors' schema and the reference of ds_config.json; --check fails on drift.
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

import { generatePublished } from './gen-config/published.mjs';
import { generateReference } from './gen-config/reference.mjs';
import { root } from './gen-config/schema.mjs';
import { generateTypes } from './gen-config/types.mjs';

const targets = {
  'types/config.generated.d.ts': generateTypes(),
  'ds_config.schema.json': generatePublished(),
  'docs/configuration.md': generateReference(),
};

function current(file) {
  try {
    return readFileSync(join(root, file), 'utf8');
  } catch {
    return null; // A missing file is drift like any other.
  }
}

const stale = Object.keys(targets).filter((file) => current(file) !== targets[file]);
if (!process.argv.includes('--check')) {
  for (const file of stale) writeFileSync(join(root, file), targets[file]);
} else if (stale.length > 0) {
  console.error(`out of date: ${stale.join(', ')}. Run \`npm run gen\` and commit it.`);
  process.exitCode = 1;
}
