// Work stealing: a rank without own prompts left takes prompts of slower ranks.
import { type CheckpointWorld, onAllRanks } from '../../checkpoint/index.js';
import type { Distributed } from '../../comm/index.js';
import type { GenerateRequest } from '../../inference/index.js';
import { required } from '../../runtime/required.js';
import type { Sampled } from './generation.js';

/** A request without the options that all ranks share, as ranks exchange it. */
type SharedRequest = Pick<GenerateRequest, 'n' | 'seed' | 'beginsText'> & { prompt: number[] };

/** Completions of the request `index` of the rank `owner`. */
type Delivery = { owner: number; index: number; completions: Sampled[] };

/** Samples the completions of one request. */
type SampleRequest = (request: GenerateRequest) => Promise<Sampled[]>;

/** Runs `body` in a phase of generation. */
export type Phase = <Result>(body: (sample: SampleRequest) => Promise<Result>) => Promise<Result>;

/** How a rank samples its own prompts and those of others. */
interface SharedSampling {
  readonly phase: Phase;
  /** Requests at once. */
  readonly lanes: number;
  /** Options of all requests. */
  readonly sampling: Omit<GenerateRequest, keyof SharedRequest>;
}

/**
 * The prompts of all ranks. Each rank claims its own prompts, then those of the following ranks.
 * Counters in the store of the job decide claims, so each prompt is sampled once.
 */
export class SharedPrompts {
  private readonly name: string;
  private phase = 0;

  /** All ranks create it in the same order. */
  constructor(
    private readonly job: Distributed,
    private readonly world: CheckpointWorld,
  ) {
    this.name = job.nextName('shared prompts');
  }

  /**
   * Resolves with the completions of this rank's `requests`, and the number of completions that
   * other ranks sampled. `lanes` requests run at once. All ranks call it; a failure reaches all of
   * them.
   */
  async sample(
    requests: readonly GenerateRequest[],
    { phase: inPhase, lanes, sampling }: SharedSampling,
  ): Promise<{ completions: Sampled[]; stolen: number }> {
    const { world } = this;
    const phase = this.phase++;
    const own = requests.map(({ prompt, n, seed, beginsText }) => ({
      prompt: Array.from(prompt as ArrayLike<number>),
      n,
      seed,
      beginsText,
    }));
    const shared = (await onAllRanks(world, 'sharing prompts', async () => own as never)) as never;
    const all = shared as SharedRequest[][];
    const made: Sampled[][] = [];
    const claim = (sample: SampleRequest) => async (): Promise<Delivery[]> => {
      const foreign: Delivery[] = [];
      for (let next = await this.claim(all, phase); next; next = await this.claim(all, phase)) {
        const { owner, index } = next;
        const request = required(required(all[owner])[index]);
        const completions = await sample({ ...sampling, ...request });
        if (owner === world.rank) made[index] = completions;
        else foreign.push({ owner, index, completions });
      }
      return foreign;
    };
    const given = await onAllRanks(world, 'sampling rollouts', () =>
      inPhase(
        async (sample) =>
          (await Promise.all(Array.from({ length: lanes }, claim(sample)))).flat() as never,
      ),
    );
    await this.job.store?.delete(this.key(phase, world.rank));
    let stolen = 0;
    for (const { owner, index, completions } of given.flat() as Delivery[]) {
      if (owner !== world.rank) continue;
      made[index] = completions;
      stolen += completions.length;
    }
    return { completions: made.flat(), stolen };
  }

  /** The next prompt of this rank, else of the ranks after it; null if none is left. */
  private async claim(
    all: readonly (readonly SharedRequest[])[],
    phase: number,
  ): Promise<{ owner: number; index: number } | null> {
    const { rank, size } = this.world;
    for (let i = 0; i < size; ++i) {
      const owner = (rank + i) % size;
      const index = (await required(this.job.store).add(this.key(phase, owner), 1)) - 1;
      if (index < required(all[owner]).length) return { owner, index };
    }
    return null;
  }

  private key(phase: number, owner: number): string {
    return `${this.name}/${phase}/${owner}`;
  }
}
