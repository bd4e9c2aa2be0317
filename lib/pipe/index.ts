// The exports of lib/pipe: the public API, and functions that only the engine uses.
export { rankOf } from './action.js';
export * from './api.js';
export { requireValues } from './layers.js';
export { Links, openGroup } from './links.js';
export { Pipeline } from './pipeline.js';
export { isPipelined } from './pipeline-module.js';
export { type PipelinePosition, PipelineRun, type StageWorker } from './run.js';
export { selectForwards } from './schedules.js';
