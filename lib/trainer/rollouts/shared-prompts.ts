// SharedPrompts: work stealing. A rank that has no prompts left samples prompts of slower ranks.
import { type CheckpointWorld, onAllRanks } from '../../checkpoint/index.js';
import type { Distributed } from '../../comm/index.js';
import type { GenerateRequest } from '../../inference/index.js';
import { required } from '../../runtime/required.js';
import type { Sampled } from './generation.js';

/** A request as ranks exchange it, without the options that are the same for all requests. */
type SharedRequest = Pick<GenerateRequest, 'n' | 'seed' | 'beginsText'> & { prompt: number[] };

/** Completions of the request `index` of rank `owner`. */
type Delivery = { owner: number; index: number; completions: Sampled[] };

/** Samples the completions of a request. */
type SampleRequest = (request: GenerateRequest) => Promise<Sampled[]>;

/** Runs `body` in one phase of the generation. */
export type Phase = <Result>(body: (sample: SampleRequest) => Promise<Result>) => Promise<Result>;

/** How a rank samples its own prompts and other ranks' prompts. */
interface SharedSampling {
  readonly phase: Phase;
  /** Number of requests that run at a time. */
  readonly lanes: number;
  /** Options that are the same for all requests. */
  readonly sampling: Omit<GenerateRequest, keyof SharedRequest>;
}

/**
 * The prompts of all ranks. Each rank claims its own prompts first, then prompts of the ranks after
 * it. A claim increments a counter in the job's store, so each prompt is sampled once.
 */
export class SharedPrompts {
  private readonly name: string;
  private phase = 0;

  /** All ranks must create their instances in the same order. */
  constructor(
    private readonly job: Distributed,
    private readonly world: CheckpointWorld,
  ) {
    this.name = job.nextName('shared prompts');
  }

  /**
   * Resolves with the completions of this rank's `requests`, and with how many of them other ranks
   * sampled. All ranks must call it. If a rank fails, it rejects on all.
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

  /**
   * Claims and returns the next prompt, of this rank or else of the ranks after it; null after the
   * last prompt.
   */
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
