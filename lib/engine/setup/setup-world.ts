// SetupWorld: exchanges values between the ranks while engines are built, and reports failures to
// all ranks.

import type { JsonData, JsonValue } from '../../../types/json.js';
import { type Distributed, reportOf } from '../../comm/index.js';
import { DsError } from '../../errors.js';
import { required } from '../../runtime/required.js';
import { StoreWorld } from '../saving/store-world.js';

/** Sends a value. Resolves with the values of all ranks, by rank. */
export type Exchange = <Data extends JsonData<Data>>(value: Data) => Promise<Data[]>;

/** A value of a rank, or the error that stopped it. */
type Answer<Data> = { value: Data } | { error: string };

const OP = 'initialize';

/**
 * The exchanges of initialize(). If several engines are built at once, they take turns, so the
 * order of exchanges is equal on all ranks.
 */
class SetupWorld {
  private last: Promise<unknown> = Promise.resolve();
  /** Errors that all ranks have received. */
  private readonly shared = new WeakSet<Error>();

  constructor(private readonly world: StoreWorld) {}

  runInTurn<Result>(body: (exchange: Exchange) => Promise<Result>): Promise<Result> {
    const call = this.last
      .catch(() => {})
      .then(() => body((value) => this.exchange(value)))
      .catch((error: Error) => {
        this.shared.add(error);
        throw error;
      });
    this.last = call;
    return call;
  }

  /** Sends `error` in place of a value, unless all ranks have it. Never rejects. */
  async sendError(error: unknown): Promise<void> {
    if (error instanceof Error && this.shared.has(error)) return;
    const call = this.last
      .catch(() => {})
      .then(() => this.world.announce(OP, { error: reportOf(error) }))
      .catch(() => {}); // If the job has ended, the other ranks get the failure of the job.
    this.last = call;
    await call;
  }

  private async exchange<Data extends JsonData<Data>>(value: Data): Promise<Data[]> {
    const values = await this.world.exchange(OP, { value: value as JsonValue });
    return (values as Answer<Data>[]).map((answer, rank) => {
      if ('error' in answer) throw failedError(rank, answer.error);
      return answer.value;
    });
  }
}

const worlds = new WeakMap<Distributed, SetupWorld>();

/** Returns the SetupWorld of a job with several ranks. All engines of the job use the same one. */
export function setupWorldOf(job: Distributed): SetupWorld {
  const known = worlds.get(job);
  if (known) return known;
  const { rank, worldSize: size, store, timeout, world } = job;
  const created = new SetupWorld(
    new StoreWorld(required(store), {
      rank,
      size,
      timeout,
      name: job.nextName('initialize'),
      check: () => world.check(),
      hint: 'Every rank must call initialize(), the same number of times.',
    }),
  );
  worlds.set(job, created);
  return created;
}

/** Resolves with the values of all ranks, by rank. Rejects with DS_COMM if a rank stops. */
export async function exchangeValues<Data extends JsonData<Data>>(
  job: Distributed,
  value: Data,
): Promise<Data[]> {
  if (job.worldSize === 1) return [value];
  return setupWorldOf(job).runInTurn((exchange) => exchange(value));
}

/** Runs `body`. If it throws on this rank only, the other ranks get DS_COMM with the error. */
export async function runOrReport<Result>(
  job: Distributed,
  body: () => Promise<Result>,
): Promise<Result> {
  try {
    return await body();
  } catch (error) {
    if (job.worldSize > 1) await setupWorldOf(job).sendError(error);
    throw error;
  }
}

/** Returns the error for an exchange with a failed rank. */
function failedError(rank: number, error: string): DsError {
  return new DsError({
    code: 'DS_COMM',
    op: OP,
    expected: 'every rank to take part',
    got: `rank ${rank} failed: ${error}`,
  });
}
