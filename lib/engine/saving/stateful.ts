// Stateful: an object with JSON state that checkpoints store.
import type { JsonObject } from '../../../types/json.js';

/** A companion of the engine, such as the loader of its training data. */
export interface Stateful {
  /** Returns the state to save. */
  stateDict(): JsonObject;
  /** Throws DS_CHECKPOINT if the state belongs to another kind of object. */
  loadStateDict(state: JsonObject): void;
}
