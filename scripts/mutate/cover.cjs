// Records which mutants a process reaches. Instrumented sources call it instead of Stryker's
// counter, since tests start processes and threads.
const { appendFileSync } = require('node:fs');

const WINDOW_MS = 50;
const file = process.env.MUTATE_HITS;
const chosen = new Set((process.env.MUTATE_IDS ?? '').split(','));
const noted = new Map();
let test;

/** A frame of the sources that jest has called: the top level of a module. */
const TOP_LEVEL = /[\\/]lib[\\/][^\n]*\n[^\n]*[\\/]jest-runtime[\\/]/;

/** Whether a module is being loaded. All later tests of the file use its values. */
const isLoading = () => TOP_LEVEL.test(new Error().stack);

/**
 * Appends a line for each chosen mutant: once for each test, and in a child process once in 50 ms.
 */
module.exports = function cover(...ids) {
  // The environment of the tests counts them.
  if (globalThis.mutateTest !== test) {
    test = globalThis.mutateTest;
    noted.clear();
  }
  for (const id of ids) {
    if (!chosen.has(id)) continue;
    const now = Date.now();
    if (now - (noted.get(id) ?? 0) < WINDOW_MS) continue;
    noted.set(id, now);
    appendFileSync(file, `${isLoading() ? 'load' : 'hit'}\t${now}\t${id}\n`);
  }
};
