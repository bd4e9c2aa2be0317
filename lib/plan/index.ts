// Predicts the memory and the step time of a run without allocating anything.
export { type ExperimentMetrics, type ModelInfo, writeResult } from './autotuning-files.js';
export { type JobFacts, type JobMesh, setupOfConfig } from './config-setup.js';
export {
  type EstimateMemoryOptions,
  estimateMemory,
  type MemoryEstimate,
} from './estimate-memory.js';
export {
  type DeviceBytes,
  type HostBytes,
  type Memory,
  type MinimumBytes,
  type Parts,
  predictMemory,
  predictMinimum,
  totalBytes,
} from './memory.js';
export { countSizes, type ModelSizes, requireLength, sizesOf } from './model-sizes.js';
export { configuredFacts, factsOf, type OptimizerFacts } from './optimizer-facts.js';
export {
  buildConfig,
  type Candidate,
  makePlan,
  type Plan,
  type PlanRequest,
  predictCandidate,
  rankCandidates,
} from './plan.js';
export { createPlannedModel, isGpt2Size, type PlannedAdapters } from './planned-model.js';
export { H200, hostAdamRate, type Rates, ratesNamed, ratesOf } from './rates.js';
export { formatPlan, formatPrediction } from './report.js';
export { type MemoryLocation, plainSetup, type Setup } from './setup.js';
export { chooseStrategies, footprintIn } from './state-parts.js';
export { type Cluster, predictGpuShare, predictStepTime, type StepTime } from './step-time.js';
export {
  type AvailableMemory,
  type CandidateMemory,
  type CandidateSetup,
  chooseSetup,
  predictSetup,
  type SelectionInputs,
  usedShare,
} from './zero-choice.js';
