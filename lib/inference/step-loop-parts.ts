// The parts of a generation loop, and the interface that receives its events.
import type { CausalLM } from '../models/index.js';
import type { Adapters } from './adapters/adapters.js';
import type { GenerationPiece } from './continuation.js';
import type { LogprobsRule } from './logprobs-rule.js';
import { PieceQueue } from './piece-queue.js';
import type { ReadRequest, RequestLimits } from './request.js';
import type { SchedulerLimits } from './scheduler.js';
import type { DraftModel } from './speculation/draft-model.js';
import type { SpeculationSettings } from './speculation/speculator.js';
import type { StepRunner } from './step-runner.js';

/** Receives the events of a loop. */
export interface StepListener {
  /** Returns the queue for a request's pieces. The queue calls `onLeave` if its reader leaves. */
  queueOf(request: ReadRequest, onLeave: () => void): PieceQueue<GenerationPiece>;
  /** Called when no work is left for now. */
  idle(): void;
}

/** Default listener: only the reader gets pieces. */
export const noListener: StepListener = {
  queueOf: (_request, onLeave) => new PieceQueue(onLeave),
  idle: () => {},
};

/** Parts of a loop; it owns the runner. */
export interface StepLoopParts {
  model: CausalLM;
  runner: StepRunner;
  limits: SchedulerLimits;
  requests: RequestLimits;
  listener?: StepListener;
  /** Launches a step before the host has the tokens of the last one. */
  runsAhead: boolean;
  /** Adapters of the model. Default: none. */
  adapters?: Adapters | null;
  /** How log-probabilities are computed. */
  logprobs?: LogprobsRule;
  /** Null or absent: a step computes one token per sequence. */
  speculation?: SpeculationSettings | null;
  /** The loop owns it. Null or absent: proposals come from lookups. */
  draft?: DraftModel | null;
}
