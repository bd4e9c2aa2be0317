// The role of an engine among the ranks that share its model.
import type { DsError } from '../../errors.js';
import { argumentError } from '../../runtime/input-errors.js';
import type { Generator } from '../generator.js';

/** Operations that depend on this role. */
export interface EngineRole {
  /** Rank within the group that shares the model. Rank 0 samples. */
  readonly rank: number;
  /** See InferenceEngine.follow(). */
  follow(): Promise<void>;
  /**
   * Throws DS_ARGUMENT if a forward outside the steps could collide with a step of another rank.
   */
  requireForward(generator: Generator): void;
  /** Throws DS_ARGUMENT for an option that is unavailable with sharing. */
  requireAlone(option: string): void;
}

/** The role of an engine that has the whole model. */
export const aloneRole: EngineRole = {
  rank: 0,
  follow: async () => {},
  requireForward: () => {},
  requireAlone: () => {},
};

/** Ranks that share a model cannot sleep(). */
export function asleepError(): DsError {
  const expected = 'an engine that has the whole model';
  return argumentError('InferenceEngine.sleep', expected, 'one with tensor_parallel');
}
