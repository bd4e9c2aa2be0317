// The public API of pipelines.
export type { Action, Reduce, Transfer, Work, WorkKind } from './action.js';
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
export { lower } from './lower.js';
export {
  type LossFunction,
  type PartitionMethod,
  PipelineModule,
  type PipelineModuleOptions,
  type PipelineOptions,
} from './pipeline-module.js';
export type { PipelineBatch } from './run.js';
export {
  GPIPE,
  INFERENCE,
  interleaved,
  ONE_F_ONE_B,
  type Schedule,
  ZERO_BUBBLE,
} from './schedules.js';
export { type Costs, drawSchedule, type Simulation, type Span, simulate } from './simulate.js';
