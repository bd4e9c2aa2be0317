// Events of a Trainer, for listeners and for the iteration of train().
import type { ChatMessage } from '../text/index.js';

/** The position of training. */
export interface TrainerPlace {
  /** Number of updates so far. */
  step: number;
  /** Number of passes over the data so far, including fractions. */
  epoch: number;
}

/** Values by name, always with "loss". */
export type Metrics = Readonly<Record<string, number>> & { readonly loss: number };

/** Training begins or resumes. */
export interface BeginEvent extends TrainerPlace {
  /** Discriminates the event types. */
  type: 'begin';
  /** Total number of updates of the run. */
  maxSteps: number;
  /** The checkpoint that the run resumes from; null for a new run. */
  resumedFrom: string | null;
}

/** An update was enqueued. A later log event has its numbers. */
export interface StepEvent extends TrainerPlace {
  /** Discriminates the event types. */
  type: 'step';
}

/** Numbers of the updates since the last log. */
export interface LogEvent extends TrainerPlace {
  /** Discriminates the event types. */
  type: 'log';
  /**
   * Mean loss of the updates. The loss of an update is the mean over counted targets of all ranks.
   */
  loss: number;
  /** Norm of the last update's gradients before clipping. */
  gradNorm: number;
  /** Learning rate of the last update, for the first parameter group. */
  lr: number;
  /**
   * Number of tokens (or samples, for data without tokens) that all ranks have read so far, without
   * padding.
   */
  tokens: number;
  /**
   * Tokens per second of all ranks since the last log, without the time of evaluations and
   * checkpoints.
   */
  tokensPerSecond: number;
  /**
   * Model FLOPs utilization of the devices; null if their peak or the model's FLOPs are unknown.
   */
  mfu: number | null;
  /** Number of updates skipped so far because gradients were not finite. */
  skipped: number;
  /** Means of the method's metrics since the last log, by TRL's names; {} without a method. */
  metrics: Readonly<Record<string, number>>;
}

/** A completion with its rewards. */
export interface RolloutSample {
  /** The prompt: a text, or messages. */
  prompt: string | readonly ChatMessage[];
  /** The text of the completion. */
  completion: string;
  /** Rewards by the names of their functions; null if a function returned no reward. */
  rewards: Readonly<Record<string, number | null>>;
  /** Advantage over the other completions of the prompt. */
  advantage: number;
}

/** The model has completed prompts, and reward functions have rated them. */
export interface RolloutEvent extends TrainerPlace {
  /** Discriminates the event types. */
  type: 'rollout';
  /** The completions of this rank. */
  samples: readonly RolloutSample[];
  /** Mean reward over all ranks. */
  reward: number;
  /** Seconds of generation, rewards and scoring. */
  seconds: { generate: number; reward: number; score: number };
}

/** The model has been evaluated. */
export interface EvaluateEvent extends TrainerPlace {
  /** Discriminates the event types. */
  type: 'evaluate';
  /** Metrics over all data and ranks, weighted by counts. */
  metrics: Metrics;
  /** Whether it is the best evaluation so far; null without `save.best`. */
  isBest: boolean | null;
}

/** A checkpoint is complete. */
export interface SaveEvent extends TrainerPlace {
  /** Discriminates the event types. */
  type: 'save';
  /** Folder of the checkpoint. */
  path: string;
}

/** A pass over the data has ended. */
export interface EpochEvent extends TrainerPlace {
  /** Discriminates the event types. */
  type: 'epoch';
}

/** A problem that the user should check. */
export interface AlertEvent extends TrainerPlace {
  /** Discriminates the event types. */
  type: 'alert';
  /** Severity. */
  level: 'info' | 'warning' | 'error';
  /** Text of the alert, one sentence. */
  message: string;
}

/** Why training ended: all updates done, stopped by a signal, or stopped early. */
export type EndReason = 'done' | 'stopped' | 'early';

/** Training has ended. */
export interface EndEvent extends TrainerPlace {
  /** Discriminates the event types. */
  type: 'end';
  /** Reason of the end. */
  reason: EndReason;
  /** The last checkpoint, or null. */
  checkpoint: string | null;
  /** The best checkpoint. With `save.best.load`, the model has its weights now. */
  best: { metric: number; step: number; checkpoint: string | null } | null;
}

/** Any event of a Trainer. */
export type TrainerEvent =
  | BeginEvent
  | StepEvent
  | LogEvent
  | RolloutEvent
  | EvaluateEvent
  | SaveEvent
  | EpochEvent
  | AlertEvent
  | EndEvent;

/** The types of events. */
export type TrainerEventType = TrainerEvent['type'];

/** The event of a type. */
export type TrainerEventOf<Type extends TrainerEventType> = Extract<TrainerEvent, { type: Type }>;

/** The type of an event, or "any". */
export type EventName = TrainerEventType | 'any';

/** A callback for an event; a returned promise is awaited. */
export type Listener<Type extends EventName> = (
  event: Type extends TrainerEventType ? TrainerEventOf<Type> : TrainerEvent,
) => unknown;

/** Every type of event; the compiler keeps the list complete. */
export const EVENT_TYPES: Readonly<Record<EventName, true>> = {
  begin: true,
  step: true,
  log: true,
  evaluate: true,
  save: true,
  epoch: true,
  rollout: true,
  alert: true,
  end: true,
  any: true,
};

/** Listeners by type of event. */
export class Listeners {
  private readonly byType = new Map<EventName, Set<(event: never) => unknown>>();

  /** Adds a listener. A listener that is already registered is called once. */
  add<Type extends EventName>(type: Type, listener: Listener<Type>): void {
    const present = this.byType.get(type) ?? new Set();
    this.byType.set(type, present.add(listener as (event: never) => unknown));
  }

  /** Removes a listener. */
  remove<Type extends EventName>(type: Type, listener: Listener<Type>): void {
    this.byType.get(type)?.delete(listener as (event: never) => unknown);
  }

  /**
   * Calls and awaits the listeners of the event's type, then the listeners of "any". Listeners run
   * in the order of their addition.
   */
  async report(event: TrainerEvent): Promise<void> {
    for (const type of [event.type, 'any'] as const) {
      for (const listener of [...(this.byType.get(type) ?? [])]) await listener(event as never);
    }
  }
}
