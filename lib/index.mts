// The ESM door: re-exports the CommonJS build, so that both worlds share one class identity.
export * from './index.js';
