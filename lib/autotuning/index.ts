// The door of the autotuning room.
export { type AutotuneRequest, autotune, type Found } from './autotune.js';
export type { Ended, Jobs } from './experiments.js';
