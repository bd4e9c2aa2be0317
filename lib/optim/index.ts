// The public API of optimizers, learning-rate schedules and loss scalers.
export type {
  CopyArgs,
  FillArgs,
  MatmulArgs,
  MatmulEpilogue,
  ScaleArgs,
} from '../runtime/kernels.generated.js';
export { Adafactor, type AdafactorOptions } from './adafactor.js';
export { Adagrad, type AdagradGroup, type AdagradOptions } from './adagrad.js';
export type { AdamGroup } from './adam-rule.js';
export {
  Adam,
  type AdamOptions,
  AdamW,
  type AdamWOptions,
  DeepSpeedCPUAdam,
  FusedAdam,
} from './adamw.js';
export { AdamW8bit, type AdamW8bitOptions } from './adamw8bit.js';
export {
  CosineAnnealingLr,
  type CosineAnnealingOptions,
  CosineAnnealingWarmRestarts,
  type WarmRestartsOptions,
} from './cosine.js';
export {
  ConstantLr,
  type ConstantOptions,
  ExponentialLr,
  type ExponentialOptions,
  LinearLr,
  type LinearOptions,
  LrRangeTest,
  type LrRangeTestOptions,
  MultiStepLr,
  type MultiStepOptions,
  PolynomialLr,
  type PolynomialOptions,
  StepLr,
  type StepOptions,
} from './decay.js';
export type { DeclaredState, StateKeeper, StateTensor } from './declared-state.js';
export { perBlock, perElement, perParameter } from './declared-state.js';
export type { ExchangingOptimizer, PayloadPass } from './exchange.js';
export { Lamb, type LambGroup, type LambOptions } from './lamb.js';
export { LambdaLr, type LambdaOptions } from './lambda.js';
export { Lion, type LionGroup, type LionOptions } from './lion.js';
export {
  DynamicLossScaler,
  type DynamicLossScalerOptions,
  type LossScaler,
  StaticLossScaler,
} from './loss-scale.js';
export { LrScheduler } from './lr-scheduler.js';
export { Muon, type MuonOptions } from './muon.js';
export { type MuonGroup, type MuonGroupOptions, makeMuonGroups } from './muon-groups.js';
export type { NewtonSchulzMethod } from './newton-schulz.js';
export { OneBitAdam, type OneBitAdamOptions } from './one-bit-adam.js';
export { OneBitLamb, type OneBitLambOptions } from './one-bit-lamb.js';
export { OneBitSGD, type OneBitSGDOptions } from './one-bit-sgd.js';
export { OneCycle, type OneCycleOptions } from './one-cycle.js';
export type {
  GatheredOptimizer,
  MeasuringOptimizer,
  Optimizer,
  ParameterPlace,
  SpeculationTensors,
  SpeculativeOptimizer,
  StepGradient,
  SummedOptimizer,
  UpdateSettings,
  UpdateTensors,
} from './optimizer.js';
export type { GroupOptions, ParamGroup, ParamsOf } from './param-groups.js';
export { type Metric, type PlateauOptions, ReduceLrOnPlateau } from './reduce-on-plateau.js';
export { RMSprop, type RMSpropGroup, type RMSpropOptions } from './rmsprop.js';
export { type LrSchedule, PureSchedule, type ScheduledGroup } from './schedule.js';
export { ScheduleSet } from './schedule-set.js';
export { Sgd, type SgdGroup, type SgdOptions } from './sgd.js';
export type { SplitTensors, SplittingOptimizer } from './split-master.js';
export { StandaloneOptimizer } from './standalone.js';
export type { OptimizerStateDict } from './state-dict.js';
export type { UpdateKernels } from './update-kernels.js';
export type * from './update-ops.generated.js';
export {
  WarmupCosineLr,
  type WarmupCosineOptions,
  WarmupDecayLr,
  type WarmupDecayOptions,
  WarmupLr,
  type WarmupOptions,
  type WarmupType,
} from './warmup.js';
export { ZeroOneAdam, type ZeroOneAdamOptions } from './zero-one-adam.js';
