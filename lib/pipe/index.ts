// The door of the room of pipelines.
export { type Action, rankOf } from './action.js';
export {
  type LayerClass,
  type LayerLike,
  LayerSpec,
  type Pipelined,
  type PipelineLayer,
  type TiedForward,
  TiedLayerSpec,
  type Values,
} from './layers.js';
export { Links } from './links.js';
export { lower } from './lower.js';
export { Pipeline } from './pipeline.js';
export {
  isPipelined,
  type PartitionMethod,
  PipelineModule,
  type PipelineModuleOptions,
  type PipelineOptions,
} from './pipeline-module.js';
export { type PipelineBatch, PipelineRun, type StageWorker, wanting } from './run.js';
export {
  forwardsOf,
  GPIPE,
  INFERENCE,
  interleaved,
  ONE_F_ONE_B,
  type Schedule,
  ZERO_BUBBLE,
} from './schedules.js';
export { drawSchedule, type Simulation, simulate } from './simulate.js';
