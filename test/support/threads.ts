// Lets threads of the library run its TypeScript sources, in every test file, and in scripts that
// tests start.
import { join } from 'node:path';

import { threadOptions } from '../../lib/runtime/thread.js';

threadOptions.execArgv = ['-r', join(__dirname, 'run-typescript.cjs')];
