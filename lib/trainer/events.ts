// The events of a Trainer, for listeners and for the iteration over train().
import type { ChatMessage } from '../text/index.js';

/** How far the training has got. */
export interface TrainerPlace {
  /** Number of updates so far. */
  step: number;
  /** Number of passes over the data so far, with a fraction. */
  epoch: number;
}

/** Metrics by name. "loss" is always present. */
export type Metrics = Readonly<Record<string, number>> & { readonly loss: number };

/** Training starts or resumes. */
export interface BeginEvent extends TrainerPlace {
  /** Discriminates the event types. */
  type: 'begin';
  /** Number of the run's last update. */
  maxSteps: number;
  /** The checkpoint that the run has loaded; null for a new run. */
  resumedFrom: string | null;
}

/** An update was enqueued on the device. A later log event reports its numbers. */
export interface StepEvent extends TrainerPlace {
  /** Discriminates the event types. */
  type: 'step';
}

/** Numbers of the updates since the last log event. */
export interface LogEvent extends TrainerPlace {
  /** Discriminates the event types. */
  type: 'log';
  /**
   * Mean of the losses of these updates. The loss of an update is the mean over the counted targets
   * of all ranks.
   */
  loss: number;
  /** Norm of the gradients of the last update, before clipping. */
  gradNorm: number;
  /** Learning rate of the last update, of the first parameter group. */
  lr: number;
  /**
   * Number of tokens that all ranks have read so far, without padding. For data without tokens, the
   * number of samples.
   */
  tokens: number;
  /**
   * Tokens per second of all ranks since the last log event. The time of evaluations and
   * checkpoints does not count.
   */
  tokensPerSecond: number;
  /**
   * Model FLOPs utilization of the devices. Null if the devices' peak or the model's FLOPs are
   * unknown.
   */
  mfu: number | null;
  /** Number of updates that were skipped so far because gradients were not finite. */
  skipped: number;
  /**
   * Means of the method's metrics since the last log event, by TRL's names; {} without a method.
   */
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
  /** Advantage over the other completions of the same prompt. */
  advantage: number;
}

/** The model has completed prompts, and the reward functions have rated the completions. */
export interface RolloutEvent extends TrainerPlace {
  /** Discriminates the event types. */
  type: 'rollout';
  /** The completions of this rank. */
  samples: readonly RolloutSample[];
  /** Mean reward over all ranks. */
  reward: number;
  /** Seconds that generation, reward functions and scoring took. */
  seconds: { generate: number; reward: number; score: number };
}

/** The model has been evaluated. */
export interface EvaluateEvent extends TrainerPlace {
  /** Discriminates the event types. */
  type: 'evaluate';
  /** Metrics over the data of all ranks. */
  metrics: Metrics;
  /** Whether it is the best evaluation so far; null without `save.best`. */
  isBest: boolean | null;
}

/** A checkpoint was written completely. */
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

/** A problem that the user should look at. */
export interface AlertEvent extends TrainerPlace {
  /** Discriminates the event types. */
  type: 'alert';
  /** Severity. */
  level: 'info' | 'warning' | 'error';
  /** Describes the problem in a sentence. */
  message: string;
}

/**
 * Why training ended. "done": all updates are done; "stopped": by a signal; "early": by early
 * stopping.
 */
export type EndReason = 'done' | 'stopped' | 'early';

/** Training has ended. */
export interface EndEvent extends TrainerPlace {
  /** Discriminates the event types. */
  type: 'end';
  /** Why training ended. */
  reason: EndReason;
  /** The last checkpoint, or null. */
  checkpoint: string | null;
  /**
   * The best evaluation and its checkpoint. With `save.best.load`, the model now has its weights.
   */
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

/** A function that receives events. If it returns a promise, the Trainer awaits it. */
export type Listener<Type extends EventName> = (
  event: Type extends TrainerEventType ? TrainerEventOf<Type> : TrainerEvent,
) => unknown;

/** All event types. The type makes the compiler report a missing one. */
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

/** The listeners of a Trainer, by type of event. */
export class Listeners {
  private readonly byType = new Map<EventName, Set<(event: never) => unknown>>();

  /** Adds a listener. A listener that is added twice is called once per event. */
  add<Type extends EventName>(type: Type, listener: Listener<Type>): void {
    const present = this.byType.get(type) ?? new Set();
    this.byType.set(type, present.add(listener as (event: never) => unknown));
  }

  /** Removes a listener. */
  remove<Type extends EventName>(type: Type, listener: Listener<Type>): void {
    this.byType.get(type)?.delete(listener as (event: never) => unknown);
  }

  /**
   * Calls the listeners of the event's type, then the listeners of "any". Listeners of one type run
   * in the order of their addition. Awaits each.
   */
  async report(event: TrainerEvent): Promise<void> {
    for (const type of [event.type, 'any'] as const) {
      for (const listener of [...(this.byType.get(type) ?? [])]) await listener(event as never);
    }
  }
}
