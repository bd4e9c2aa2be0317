// The door of the room of pipelines: what programs use, and what the engine does beside it.
export { rankOf } from './action.js';
export * from './door.js';
export { requireValues } from './layers.js';
export { groupOf, Links } from './links.js';
export { Pipeline } from './pipeline.js';
export { isPipelined } from './pipeline-module.js';
export { PipelineRun, type Place, type StageWorker } from './run.js';
export { forwardsOf } from './schedules.js';
