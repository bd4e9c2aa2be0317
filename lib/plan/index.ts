// Predicts the memory and the step time of a run without allocating anything.
export { type ExperimentMetrics, type ModelInfo, writeResult } from './autotuning-files.js';
export { type JobFacts, type JobMesh, setupOfConfig } from './config-setup.js';
export {
  type EstimateMemoryOptions,
  estimateMemory,
  type MemoryEstimate,
} from './estimate-memory.js';
export {
  type CertainBytes,
  certainOf,
  type DeviceBytes,
  type HostBytes,
  type Memory,
  memoryOf,
  type Parts,
  total,
} from './memory.js';
export { countsOf, type ModelSizes, requireLength, sizesOf } from './model-sizes.js';
export { configuredFacts, factsOf, type OptimizerFacts } from './optimizer-facts.js';
export {
  type Candidate,
  configOf,
  inOrder,
  makePlan,
  type Plan,
  type PlanRequest,
  weigh,
} from './plan.js';
export { isGpt2Size, type PlannedAdapters, plannedModel } from './planned-model.js';
export { H200, hostAdamRate, type Rates, ratesNamed, ratesOf } from './rates.js';
export { formatPlan, formatPrediction } from './report.js';
export { type Place, plainSetup, type Setup } from './setup.js';
export { choiceOf, footprintIn } from './state-parts.js';
export { type Cluster, plannedGpuShare, type StepTime, stepTime } from './step-time.js';
export {
  type CandidateMemory,
  type CandidateSetup,
  chooseWay,
  type Room,
  usedShare,
  type Weights,
  weighWay,
} from './zero-choice.js';
