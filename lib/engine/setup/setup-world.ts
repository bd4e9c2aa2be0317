// The ranks of a job while engines are built: what they tell each other then, one engine after the
// other, and how all of them learn where one cannot go on.
import type { JsonData, JsonValue } from '../../../types/json.js';
import { type Distributed, reportOf } from '../../comm/index.js';
import { DsError } from '../../errors.js';
import { StoreWorld } from '../saving/store-world.js';

/** Resolves with every rank's value, by rank. */
export type Exchange = <Data extends JsonData<Data>>(value: Data) => Promise<Data[]>;

/** A value, or what a rank that does not go on has met with. */
type Answer<Data> = { value: Data } | { error: string };

const OP = 'initialize';

/**
 * Engines that are built at the same time exchange one after the other, so in the same order on
 * every rank.
 */
class SetupWorld {
  private last: Promise<unknown> = Promise.resolve();
  /** What came of exchanges, on all ranks alike. */
  private readonly shared = new WeakSet<Error>();

  constructor(private readonly world: StoreWorld) {}

  inTurn<Result>(body: (exchange: Exchange) => Promise<Result>): Promise<Result> {
    const turn = this.last
      .catch(() => {})
      .then(() => body((value) => this.exchange(value)))
      .catch((error: Error) => {
        this.shared.add(error);
        throw error;
      });
    this.last = turn;
    return turn;
  }

  /** The others get `error` instead of this rank's part, unless they have it. Never rejects. */
  async refuse(error: unknown): Promise<void> {
    if (this.shared.has(error as Error)) return;
    const turn = this.last
      .catch(() => {})
      .then(() => this.world.announce(OP, { error: reportOf(error) }))
      .catch(() => {}); // Where the job is over, the others learn of that.
    this.last = turn;
    await turn;
  }

  private async exchange<Data extends JsonData<Data>>(value: Data): Promise<Data[]> {
    const said = await this.world.exchange(OP, { value: value as JsonValue });
    return (said as Answer<Data>[]).map((one, rank) => {
      if ('error' in one) throw failed(rank, one.error);
      return one.value;
    });
  }
}

const worlds = new WeakMap<Distributed, SetupWorld>();

/** That of a job of several ranks. */
export function setupWorldOf(job: Distributed): SetupWorld {
  const known = worlds.get(job);
  if (known) return known;
  const { rank, worldSize: size, store, timeout, world } = job;
  const made = new SetupWorld(
    new StoreWorld(store as NonNullable<typeof store>, {
      ...{ rank, size, timeout, name: job.nextName('initialize'), check: () => world.check() },
      hint: 'Every rank must call initialize(), and as often.',
    }),
  );
  worlds.set(job, made);
  return made;
}

/**
 * What every rank says, by rank; all of them ask at the same point of initialize(). Rejects with
 * DS_COMM where one does not go on.
 */
export async function exchanged<Data extends JsonData<Data>>(
  job: Distributed,
  value: Data,
): Promise<Data[]> {
  if (job.worldSize === 1) return [value];
  return setupWorldOf(job).inTurn((exchange) => exchange(value));
}

/**
 * Runs this rank's part of initialize(). Where it throws alone, the others get DS_COMM with that in
 * place of what they would exchange next.
 */
export async function orReport<Result>(
  job: Distributed,
  body: () => Promise<Result>,
): Promise<Result> {
  try {
    return await body();
  } catch (error) {
    if (job.worldSize > 1) await setupWorldOf(job).refuse(error);
    throw error;
  }
}

/** As a collective fails whose ranks one of them has left: see JointCall. */
function failed(rank: number, error: string): DsError {
  return new DsError({
    code: 'DS_COMM',
    op: OP,
    expected: 'every rank to take part',
    got: `rank ${rank} failed: ${error}`,
  });
}
