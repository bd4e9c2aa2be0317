// The autotuner: searches the fastest configuration with jobs of the user's program.
export { type AutotuneRequest, autotune, type SearchResult } from './autotune.js';
export type { JobEnd, Jobs } from './experiments.js';
