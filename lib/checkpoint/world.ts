// The ranks that save and load a checkpoint together, and how they succeed or fail together.
import type { JsonObject, JsonValue } from '../../types/json.js';
import { DsError } from '../errors.js';
import { asDsError } from './file-error.js';

export interface CheckpointWorld {
  readonly rank: number;
  readonly size: number;
  /**
   * Every rank's value, by rank, once all have come to the exchange of this label. Rejects with
   * DS_COMM naming the ranks that did not come in time, or that came to another label.
   */
  exchange(label: string, value: JsonValue): Promise<JsonValue[]>;
}

/** One process, one rank. */
export const soloWorld: CheckpointWorld = {
  rank: 0,
  size: 1,
  exchange: async (_label, value) => [value],
};

/**
 * Runs `body` on every rank and resolves with all their results, by rank. Where it fails on one
 * rank it fails on all: there with its own error, elsewhere with DS_CHECKPOINT, which names that
 * rank and repeats what it said.
 */
export async function inUnison<T extends JsonValue>(
  world: CheckpointWorld,
  label: string,
  body: () => Promise<T>,
): Promise<T[]> {
  const own = await outcomeOf(label, body);
  const outcomes = await world.exchange(label, own.told).catch((error: unknown) => {
    throw own.failed ? own.error : error;
  });
  if (own.failed) throw own.error;
  const rank = outcomes.findIndex((outcome) => 'error' in (outcome as JsonObject));
  if (rank >= 0) throw failureOf(label, rank, (outcomes[rank] as JsonObject).error as JsonObject);
  return outcomes.map((outcome) => (outcome as JsonObject).value as T);
}

type Outcome = { told: JsonObject } & ({ failed: false } | { failed: true; error: unknown });

async function outcomeOf(step: string, body: () => Promise<JsonValue>): Promise<Outcome> {
  try {
    return { told: { value: await body() }, failed: false };
  } catch (thrown) {
    const error = asDsError(thrown, step);
    const { expected, got, hint, op } = error as Partial<DsError>;
    const told: JsonObject =
      error instanceof DsError
        ? { op: String(op), expected: String(expected), got: String(got), hint: String(hint) }
        : { op: kindOf(error), expected: 'success', got: String(error), hint: '' };
    return { told: { error: told }, failed: true, error };
  }
}

function kindOf(error: unknown): string {
  return (error as Error | null)?.name ?? 'error';
}

function failureOf(step: string, rank: number, told: JsonObject): DsError {
  return new DsError({
    code: 'DS_CHECKPOINT',
    op: `${step} on rank ${rank}: ${told.op}`,
    expected: String(told.expected),
    got: String(told.got),
    hint: String(told.hint),
  });
}
