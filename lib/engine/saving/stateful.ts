// What a checkpoint can carry along: objects that turn their state into JSON and back.
import type { JsonObject } from '../../../types/json.js';

/** A companion of the engine, such as the loader of its training data. */
export interface Stateful {
  /** What a checkpoint is to keep. */
  stateDict(): JsonObject;
  /** Throws DS_CHECKPOINT when the state is not one of such an object. */
  loadStateDict(state: JsonObject): void;
}
