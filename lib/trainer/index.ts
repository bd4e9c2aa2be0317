// The door of the trainer room.
export type {
  AlertEvent,
  BeginEvent,
  EndEvent,
  EndReason,
  EpochEvent,
  EvaluateEvent,
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
  SaveOptions,
  TrainerCallbacks,
  TrainerData,
  TrainerDataOptions,
  TrainerOptions,
} from './options.js';
export type { Schedule, ScheduleOptions, ScheduleType } from './own-schedule.js';
export { readTrainerOptions, type TrainerSettings } from './read-options.js';
