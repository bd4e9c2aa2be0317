// The package's version, read from its package.json.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';

import { packageRoot } from './runtime/package-root.js';

/** The package's version, as package.json has it. */
export const version: string = JSON.parse(
  readFileSync(join(packageRoot(), 'package.json'), 'utf8'),
).version;
