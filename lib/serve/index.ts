// The API of lib/serve: an inference engine behind HTTP and in the terminal.
export { requireKey } from './access.js';
export { chat } from './chat.js';
export type { ChatOptions } from './chat-options.js';
export { followEngine, leaveRanks } from './follow-engine.js';

export type { ResolvedLimits, ServeLimits } from './limits.js';
export { ModelPool } from './model-pool.js';
export { type EngineOptions, openEngine, openServed } from './open-engine.js';
export { openPool } from './open-pool.js';
export type { ServeOptions } from './serve-options.js';
export type {
  ContinuationOptions,
  ContinuationRequest,
  EngineStats,
  ServedEncoder,
  ServedEngine,
  ServedLogprob,
  ServedPiece,
} from './served-engine.js';
export { InferenceServer, serve, servePool } from './server.js';
