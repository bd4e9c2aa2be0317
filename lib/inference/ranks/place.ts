// Where an engine stands among ranks that share its model between them.
import type { Generator } from '../step-loop.js';

/** What an engine does in its place that others do not. */
export interface EnginePlace {
  /** Among those that share the model; the first one samples. */
  readonly rank: number;
  /** See InferenceEngine.follow(). */
  follow(): Promise<void>;
  /** Throws DS_ARGUMENT where a forward beside the steps would meet another rank's step. */
  requireForward(generator: Generator): void;
  /** Throws DS_ARGUMENT for what one rank cannot compute for all. */
  requireAlone(option: string): void;
}

/** An engine that has all of its model. */
export const placeAlone: EnginePlace = {
  rank: 0,
  follow: async () => {},
  requireForward: () => {},
  requireAlone: () => {},
};
