// All differentiable functions.
export * from './attention.js';
export * from './creation.js';
export * from './custom-function.js';
export * from './dropout.js';
export * from './elementwise.js';
export { embedding, gather } from './indexing.js';
export { linear, linearGelu, linearPadded } from './linear.js';
export * from './loss.js';
export { matmul } from './matmul.js';
export * from './norm.js';
export type { Operand } from './operands.js';
export * from './reduce.js';
export * from './unary.js';
export * from './views.js';
