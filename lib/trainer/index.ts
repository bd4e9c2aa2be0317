// The exports of lib/trainer: fine-tuning without a training loop of the program's own.

export type { Fp8Recipe } from '../tensor/ops/fp8-linear.js';
export type { Sampling, TrainerDataOptions } from './data-options.js';
export type { BatchSource, DataPlace, Served, TrainerData } from './data-source.js';
export type { Prediction } from './evaluation.js';
export type { EvalOptions, LossInput, MetricSums } from './evaluation-options.js';
export type {
  AlertEvent,
  BeginEvent,
  EndEvent,
  EndReason,
  EpochEvent,
  EvaluateEvent,
  EventName,
  Listener,
  LogEvent,
  Metrics,
  RolloutEvent,
  RolloutSample,
  SaveEvent,
  StepEvent,
  TrainerEvent,
  TrainerEventOf,
  TrainerEventType,
  TrainerPlace,
} from './events.js';
export type { Interval } from './interval.js';
export type { ScaleRewards, Score } from './methods/advantages.js';
export { type CpoLossName, type CpoOptions, cpo } from './methods/cpo.js';
export { type DpoOptions, dpo } from './methods/dpo.js';
export { type GkdOptions, gkd } from './methods/gkd.js';
export {
  type GrpoOptions,
  grpo,
  type RlooOptions,
  type RolloutSampling,
  rloo,
} from './methods/grpo.js';
export { type KtoLossName, type KtoOptions, kto } from './methods/kto.js';
export { TrainingMethod } from './methods/method.js';
export { type OrpoOptions, orpo } from './methods/orpo.js';
export type { Divergence, PairLossName } from './methods/pair-losses.js';
export type { Correction, PolicyLossName } from './methods/policy-losses.js';
export { type PrecomputeOptions, precomputeReference } from './methods/precompute.js';
export { type RewardOptions, reward } from './methods/reward.js';
export type { Precision, TrainerOptions } from './options.js';
export type { OwnOptimizerName } from './own-optimizer.js';
export type { Schedule, ScheduleOptions, ScheduleType, Slope } from './own-schedule.js';
export type {
  BestOptions,
  CheckpointOptions,
  EarlyStopOptions,
  LogOptions,
  Report,
  TrainerCallbacks,
} from './report-options.js';
/** Reward functions for grpo() and rloo(). */
export * as rewards from './rollouts/built-in-rewards.js';
export type { HybridEngine } from './rollouts/hybrid-engine.js';
export type { Completion, Reward, RewardInput, WeightedReward } from './rollouts/reward.js';
export { type RolloutOptions, Rollouts, rolloutsOf } from './rollouts/rollouts.js';
export type { RolloutTool, TimedTool, ToolInput } from './rollouts/tools.js';
export { Trainer, type TrainOptions } from './trainer.js';
export type { BestEvaluation, TrainerState } from './trainer-state.js';
export { TrainingRun } from './training-run.js';
