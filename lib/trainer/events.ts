// What a Trainer tells while it works: one union of events, for listeners and for the iteration of
// train().

/** Where training is. */
export interface TrainerPlace {
  /** Updates so far. */
  step: number;
  /** Passes over the data so far, parts included. */
  epoch: number;
}

/** Numbers by name; "loss" is there in any case. */
export type Metrics = Readonly<Record<string, number>> & { readonly loss: number };

/** Training begins, or goes on. */
export interface BeginEvent extends TrainerPlace {
  /** Tells it from other events. */
  type: 'begin';
  /** Updates in all. */
  maxSteps: number;
  /** The checkpoint that it goes on from; null for a fresh start. */
  resumedFrom: string | null;
}

/** An update has been enqueued; its numbers come with a log. */
export interface StepEvent extends TrainerPlace {
  /** Tells it from other events. */
  type: 'step';
}

/** Numbers of the updates since the last log. */
export interface LogEvent extends TrainerPlace {
  /** Tells it from other events. */
  type: 'log';
  /** Mean over the updates of each one's mean over its counted targets, of all ranks. */
  loss: number;
  /** Norm of the last update's gradients before clipping. */
  gradNorm: number;
  /** Of the last update, of the first group of parameters. */
  lr: number;
  /**
   * Tokens (or samples, of data without tokens) that all ranks have read so far, without padding.
   */
  tokens: number;
  /** Of all ranks, since the last log, without the time of evaluations and checkpoints. */
  tokensPerSecond: number;
  /**
   * Share of what the devices could do at best; null where that or the model's work is not known.
   */
  mfu: number | null;
  /** Updates left out so far because gradients were not finite. */
  skipped: number;
}

/** The model has been evaluated. */
export interface EvaluateEvent extends TrainerPlace {
  /** Tells it from other events. */
  type: 'evaluate';
  /** Over all data and ranks, exactly by their counts. */
  metrics: Metrics;
  /** Whether it is the best so far; null where `save.best` names no metric. */
  isBest: boolean | null;
}

/** A checkpoint is complete. */
export interface SaveEvent extends TrainerPlace {
  /** Tells it from other events. */
  type: 'save';
  /** Its folder. */
  path: string;
}

/** A pass over the data has ended. */
export interface EpochEvent extends TrainerPlace {
  /** Tells it from other events. */
  type: 'epoch';
}

/** Something that a person should look at. */
export interface AlertEvent extends TrainerPlace {
  /** Tells it from other events. */
  type: 'alert';
  /** How bad it is. */
  level: 'info' | 'warning' | 'error';
  /** One sentence. */
  message: string;
}

/** Why training has ended: all updates done, told to stop, or no longer improving. */
export type EndReason = 'done' | 'stopped' | 'early';

/** Training has ended. */
export interface EndEvent extends TrainerPlace {
  /** Tells it from other events. */
  type: 'end';
  /** Why. */
  reason: EndReason;
  /** The last checkpoint; null where none was written. */
  checkpoint: string | null;
  /** The best one, whose weights the model has now where `save.best` loads them. */
  best: { metric: number; step: number; checkpoint: string | null } | null;
}

/** All that a Trainer tells. */
export type TrainerEvent =
  | BeginEvent
  | StepEvent
  | LogEvent
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
export type Heard = TrainerEventType | 'any';

/** What is called for an event; what it returns is awaited. */
export type Listener<Type extends Heard> = (
  event: Type extends TrainerEventType ? TrainerEventOf<Type> : TrainerEvent,
) => unknown;

/** Every type of event; the compiler keeps the list complete. */
export const EVENT_TYPES: Readonly<Record<Heard, true>> = {
  ...{ begin: true, step: true, log: true, evaluate: true, save: true, epoch: true },
  ...{ alert: true, end: true, any: true },
};

/** Who listens to which events. */
export class Listeners {
  private readonly of = new Map<Heard, Set<(event: never) => unknown>>();

  /** Adds a listener; one that is there already stays once. */
  add<Type extends Heard>(type: Type, listener: Listener<Type>): void {
    const present = this.of.get(type) ?? new Set();
    this.of.set(type, present.add(listener as (event: never) => unknown));
  }

  /** Takes a listener away. */
  remove<Type extends Heard>(type: Type, listener: Listener<Type>): void {
    this.of.get(type)?.delete(listener as (event: never) => unknown);
  }

  /**
   * Calls, and awaits, those of the event's type and then those of any, in the order of their
   * coming.
   */
  async report(event: TrainerEvent): Promise<void> {
    for (const type of [event.type, 'any'] as const) {
      for (const listener of [...(this.of.get(type) ?? [])]) await listener(event as never);
    }
  }
}
