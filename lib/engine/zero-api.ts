// The public `zero` namespace: functions for models with sharded parameters.

export {
  registerExternalParameter,
  unregisterExternalParameter,
} from '../nn/external-parameters.js';
export {
  type DeviceBytes,
  type EstimateMemoryOptions,
  estimateMemory,
  type HostBytes,
  type MemoryEstimate,
} from '../plan/index.js';
export { init as Init } from './parameters/born-sharded.js';
export {
  safeGetFullFp32Param,
  safeGetFullGrad,
  safeGetFullOptimizerState,
  safeSetFullFp32Param,
  safeSetFullGrad,
  safeSetFullOptimizerState,
} from './parameters/full-state.js';
export {
  type Gatherable,
  type GatherOptions,
  gatheredParameters as GatheredParameters,
} from './parameters/gathered-parameters.js';
