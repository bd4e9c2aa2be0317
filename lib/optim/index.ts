// The door of the optimizer room.
export { AdamW, type AdamWOptions } from './adamw.js';
export {
  DynamicLossScaler,
  type DynamicLossScalerOptions,
  type LossScaler,
  StaticLossScaler,
} from './loss-scale.js';
export type { Optimizer, ParamGroup, UpdateTensors } from './optimizer.js';
export { ConstantLr, type LrSchedule } from './schedule.js';
export { WarmupLr, type WarmupOptions, type WarmupType } from './warmup.js';
export { WarmupCosineLr } from './warmup-cosine.js';
export { WarmupDecayLr } from './warmup-decay.js';
