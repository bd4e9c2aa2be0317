// Proposes tokens by a smaller model.
import { required } from '../../runtime/required.js';
import { concat, Tensor } from '../../tensor/index.js';
import type { Sampled } from '../sampling.js';
import type { Slice } from '../scheduler.js';
import { Sequence } from '../sequence.js';
import type { Drafted } from '../sequence-sampler.js';
import type { ScoreRow, StepRunner } from '../step-runner.js';

/** Samples the tokens after drafted tokens from scores [R, V] and writes them to `into` [R]. */
type Draw = (scores: Tensor, rows: readonly Drafted[], into: Tensor) => Sampled;

/** Sizes of a draft model. */
export interface DraftSizes {
  /** Most tokens of a step. */
  readonly tokens: number;
  /** Vocabulary of the model whose tokens it proposes. */
  readonly vocabSize: number;
}

/**
 * Runs a draft model. Its cache has the blocks of the model's cache, so a sequence has one block
 * table for both. Each sequence has a twin here, with the drafted tokens. The twin knows which of
 * its tokens are in the cache of the draft model. Owns the runner and the weights.
 */
export class DraftModel {
  private readonly twins = new WeakMap<Sequence, Sequence>();

  constructor(
    private readonly runner: StepRunner,
    private readonly sizes: DraftSizes,
    /** Frees the weights. */
    private readonly free: () => void,
  ) {}

  /**
   * Replaces the proposals of each sequence by as many drafted tokens. The sequences have blocks
   * for them. One step of the draft model per token, and one wait of the host.
   */
  async fill(sequences: readonly Sequence[], draw: Draw): Promise<void> {
    const wanted = new Map(sequences.map((one) => [this.twinOf(one), one]));
    for (let count = 0; ; ++count) {
      const open = [...wanted].filter(([twin, { tokens, proposals }]) => {
        const drafted = twin.tokens.length - tokens.length;
        return drafted === count && count < proposals.length;
      });
      if (open.length === 0) break;
      await this.step(new Map(open), draw);
    }
    for (const [twin, sequence] of wanted) {
      sequence.proposals = twin.tokens.slice(sequence.tokens.length);
    }
  }

  /** Samples one token of each twin. Long prompts take several steps. */
  private async step(sequences: ReadonlyMap<Sequence, Sequence>, draw: Draw): Promise<void> {
    let open = [...sequences.keys()];
    while (open.length > 0) {
      let budget = this.sizes.tokens;
      const slices: Slice[] = [];
      for (const twin of open) {
        const count = Math.min(twin.pending, budget);
        if (count === 0) continue;
        slices.push({ sequence: twin, first: twin.computed, count });
        budget -= count;
      }
      const begun = this.runner.begin(slices);
      for (const { sequence, count } of slices) sequence.computed += count;
      open = open.filter((twin) => twin.pending > 0);
      const rowOf = ({ sequence: twin }: ScoreRow): Drafted => {
        const sequence = required(sequences.get(twin));
        return { sequence, drafted: twin.tokens.slice(sequence.tokens.length) };
      };
      const flight = this.runner.sample(begun, (scores, rows, into) =>
        draw(fitted(scores, this.sizes.vocabSize), rows.map(rowOf), into),
      );
      await flight.landed();
      for (const { sequence: twin, sampled } of flight.next()) {
        const token = required(sampled[0]).token;
        // A negative token is an error, which the verification reports.
        if (token >= 0) twin.learn(token);
        else twin.forget();
      }
    }
  }

  /** Returns the twin of a sequence, with its tokens and blocks. */
  private twinOf(sequence: Sequence): Sequence {
    const { tokens, limit, blocks } = sequence;
    const known = this.twins.get(sequence);
    const twin = known ?? new Sequence([], limit);
    this.twins.set(sequence, twin);
    // A preempted sequence has new blocks.
    if (twin.blocks !== blocks) twin.computed = 0;
    twin.blocks = blocks;
    let same = 0;
    while (same < twin.tokens.length && twin.tokens[same] === tokens[same]) same++;
    twin.computed = Math.min(twin.computed, same);
    twin.tokens.splice(same, twin.tokens.length, ...tokens.slice(same));
    return twin;
  }

  sleep(): void {
    this.runner.sleep();
  }

  wake(): void {
    this.runner.wake();
  }

  dispose(): void {
    this.runner.dispose();
    this.free();
  }
}

/** Heads of one tokenizer may be padded to different sizes. No token is in the padding. */
function fitted(scores: Tensor, vocabSize: number): Tensor {
  const [rows, columns] = [scores.size(0), scores.size(1)];
  if (columns >= vocabSize) return scores.narrow(1, 0, vocabSize);
  const { dtype, device } = scores;
  const rest = Tensor.empty([rows, vocabSize - columns], dtype, device);
  return concat([scores, rest.fill_(Number.NEGATIVE_INFINITY)], 1);
}
