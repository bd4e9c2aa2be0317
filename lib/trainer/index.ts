// Exports of the trainer: fine-tuning without a training loop in the program.
export type { Prediction } from './evaluation.js';
export type {
  AlertEvent,
  BeginEvent,
  EndEvent,
  EndReason,
  EpochEvent,
  EvaluateEvent,
  Heard,
  Listener,
  LogEvent,
  Metrics,
  SaveEvent,
  StepEvent,
  TrainerEvent,
  TrainerEventOf,
  TrainerEventType,
  TrainerPlace,
} from './events.js';
export type {
  BatchSource,
  BestOptions,
  CheckpointOptions,
  DataPlace,
  EarlyStopOptions,
  EvalOptions,
  Every,
  LogOptions,
  LossInput,
  MetricSums,
  Precision,
  Report,
  Sampling,
  Served,
  TrainerCallbacks,
  TrainerData,
  TrainerDataOptions,
  TrainerOptions,
} from './options.js';
export type { OwnOptimizerName } from './own-optimizer.js';
export type { Schedule, ScheduleOptions, ScheduleType, Slope } from './own-schedule.js';
export { Trainer, type TrainOptions } from './trainer.js';
export type { Best, TrainerState } from './trainer-state.js';
export { TrainingRun } from './training-run.js';
