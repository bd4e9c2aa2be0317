// The native op matrix, where the GPU runner finds it.
export { cases } from './matrix/index.js';
