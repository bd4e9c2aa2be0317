// CheckpointWorld: the ranks that save or load a checkpoint together. If one fails, all fail.
import type { JsonData, JsonObject, JsonValue } from '../../types/json.js';
import { DsError } from '../errors.js';
import { asDsError } from './file-error.js';

export interface CheckpointWorld {
  readonly rank: number;
  readonly size: number;
  /**
   * Sends `value` to all ranks. Resolves with the values of all ranks, by rank, after all have
   * called exchange() with this label. Rejects with DS_COMM if a rank did not call it in time or
   * used another label; the error names these ranks.
   */
  exchange(label: string, value: JsonValue): Promise<JsonValue[]>;
}

/** The world of a process without other ranks. */
export const soloWorld: CheckpointWorld = {
  rank: 0,
  size: 1,
  exchange: async (_label, value) => [value],
};

/**
 * Runs `body` on every rank and resolves with all results, by rank. If it fails on a rank, all
 * ranks throw: that rank its own error, the others DS_CHECKPOINT with that rank and its error.
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
