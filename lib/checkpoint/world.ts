// CheckpointWorld: the ranks that save and load a checkpoint, and fail together.
import type { JsonData, JsonObject, JsonValue } from '../../types/json.js';
import { DsError } from '../errors.js';
import { asDsError } from './file-error.js';

export interface CheckpointWorld {
  readonly rank: number;
  readonly size: number;
  /**
   * Resolves with every rank's value, by rank, after all have reached the exchange of this label.
   * Rejects with DS_COMM and the ranks that did not arrive in time, or reached another label.
   */
  exchange(label: string, value: JsonValue): Promise<JsonValue[]>;
}

/** A single rank. */
export const soloWorld: CheckpointWorld = {
  rank: 0,
  size: 1,
  exchange: async (_label, value) => [value],
};

/**
 * Runs `body` on every rank and resolves with all results, by rank. If it fails on one rank, it
 * fails on all: there with its own error, elsewhere with DS_CHECKPOINT, that rank and its error.
 */
export async function onAllRanks<Data extends JsonData<Data>>(
  world: CheckpointWorld,
  label: string,
  body: () => Promise<Data>,
): Promise<Data[]> {
  const ownOutcome = await runStep(label, body);
  const outcomes = (await world.exchange(label, ownOutcome.reported).catch((error: unknown) => {
    throw ownOutcome.failed ? ownOutcome.error : error;
  })) as Report<Data>[];
  if (ownOutcome.failed) throw ownOutcome.error;
  return outcomes.map((outcome, rank) => {
    if ('error' in outcome) throw failureOf(label, rank, outcome.error);
    return outcome.value;
  });
}

/** The result of a rank, or the fields of its error. */
type Report<Data> = { value: Data } | { error: Failure };

type Failure = Record<'op' | 'expected' | 'got' | 'hint', string>;

type Outcome = { reported: JsonObject } & ({ failed: false } | { failed: true; error: unknown });

async function runStep(step: string, body: () => Promise<unknown>): Promise<Outcome> {
  try {
    return { reported: { value: (await body()) as JsonValue }, failed: false };
  } catch (thrown) {
    const error = asDsError(thrown, step);
    const { expected, got, hint, op } = error as Partial<DsError>;
    const reported: Failure =
      error instanceof DsError
        ? { op: String(op), expected: String(expected), got: String(got), hint: String(hint) }
        : { op: kindOf(error), expected: 'success', got: String(error), hint: '' };
    return { reported: { error: reported }, failed: true, error };
  }
}

function kindOf(error: unknown): string {
  return (error as Error | null)?.name ?? 'error';
}

function failureOf(step: string, rank: number, { op, ...reported }: Failure): DsError {
  return new DsError({ code: 'DS_CHECKPOINT', op: `${step} on rank ${rank}: ${op}`, ...reported });
}
