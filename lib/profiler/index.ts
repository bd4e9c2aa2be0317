// The profiler: FLOPs and latency by module, and traces of steps.
export type { StreamWork, WorkWatcher } from '../runtime/watched-work.js';
export type { Work } from './flop-counts.js';
export {
  FlopsProfiler,
  type ForwardProfile,
  getModelProfile,
  type ModelProfileOptions,
  type PrintOptions,
  type Profiled,
  printProfile,
} from './flops-profiler.js';
export type { Pass, PassWork } from './module-tree.js';
export type { ModelProfile, ModuleProfile, StepFacts } from './profile.js';
export { formatCount, formatDuration, formatProfile, type ReportOptions } from './report.js';
export { Trace, type TraceOptions } from './trace.js';
export { type TraceEvent, type TraceFile, writeTrace } from './trace-events.js';
