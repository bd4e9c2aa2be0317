// The autotuner: searches the fastest configuration with jobs of the user's program.
export { type AutotuneRequest, autotune, type Found } from './autotune.js';
export type { Ended, Jobs } from './experiments.js';
