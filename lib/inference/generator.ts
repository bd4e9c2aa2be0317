// Interface of an engine's generator, which turns requests into pieces of text.
import type { DsError } from '../errors.js';
import type { FinishReason, Generation, GenerationPiece } from './continuation.js';
import type { PieceQueue } from './piece-queue.js';
import type { ReadRequest } from './request.js';
import type { ScheduleCounts } from './scheduler.js';
import type { SpeculationCounts } from './speculation/speculator.js';

/** Counters since the creation of the engine. */
export interface InferenceStats extends ScheduleCounts, SpeculationCounts {
  /** Prompt tokens of accepted requests. */
  promptTokens: number;
  /** Sampled tokens. */
  generatedTokens: number;
  /** Finished continuations by finish reason. */
  finished: Record<FinishReason, number>;
  /** Number of steps. */
  steps: number;
  /** Host milliseconds spent on steps, without waiting. */
  hostMs: number;
}

/** A submitted request. */
export interface Submitted {
  readonly pieces: PieceQueue<GenerationPiece>;
  /** Aborts its unfinished continuations. */
  abort(): void;
}

/** Continues the prompts of an engine. */
export interface Generator {
  /** True while sequences are running or queued. */
  readonly isBusy: boolean;
  /** The error after which no step succeeds, such as a lost rank; null before. */
  readonly failure: DsError | null;
  /** Throws DS_LIMIT for a request that does not fit into the cache. */
  submit(request: ReadRequest): Submitted;
  stats(): InferenceStats;
  /** Adds sequences that were generated outside the steps to the counters. */
  count(promptTokens: number, results: readonly Generation[]): void;
  /** See InferenceEngine.sleep(). No request may be in progress. */
  sleep(): void;
  /** See InferenceEngine.wake(). */
  wake(): void;
  /** Ends all requests with "abort" and frees its resources. */
  close(): Promise<void>;
}
