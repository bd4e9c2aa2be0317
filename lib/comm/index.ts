// The public API of communication between the ranks of a job.

export type { CollectiveKind } from '../runtime/job.js';
export type { SignLevels } from '../runtime/kernels.generated.js';
export {
  bandwidth,
  CommsLogger,
  type CommsLoggerOptions,
  type CommsRecord,
  type CommsTotal,
} from './comms-logger.js';
export {
  CompressedExchange,
  type CompressedOptions,
  type ExchangeGroup,
  type ExchangeStart,
  type ExchangeWork,
} from './compressed-exchange.js';
export { type ChunkSegments, CompressedLayout, type Segment } from './compressed-layout.js';
export {
  aloneOn,
  Distributed,
  distributed,
  initDistributed,
  joinLaunched,
  type LogSummaryOptions,
  logSummary,
} from './distributed.js';
export type { InitOptions } from './join-settings.js';
export { JointCall, type JointGroups, jointly, jointlyAsync, reportOf } from './joint-calls.js';
export type { Mesh } from './mesh.js';
export { AXES, type Axis, type MeshOptions, MeshShape, type PerAxis } from './mesh-shape.js';
export {
  type CollectiveOptions,
  ProcessGroup,
  type ReduceOp,
  type RowOptions,
  Work,
} from './process-group.js';
