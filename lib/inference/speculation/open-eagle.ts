// Opens an EAGLE-3 head: its features, its cache, and its use as a draft model.
import type { CausalLM } from '../../models/index.js';
import { dtypeSize } from '../../runtime/dtype.js';
import { required } from '../../runtime/required.js';
import { scope, Tensor } from '../../tensor/index.js';
import type { CacheSizes } from '../paged-cache.js';
import type { Sequence } from '../sequence.js';
import { StepRunner } from '../step-runner.js';
import { type DraftHead, DraftModel } from './draft-model.js';
import type { EagleHead } from './eagle-head.js';
import { FeaturePool, FeatureWriter, type RunnerHooks } from './features.js';
import { type DraftLimits, draftCost, type OpenDraft } from './opened-draft.js';
import type { DraftCost } from './speculator.js';

/** A loaded head. Owns the weights and the features. */
export class OpenedEagle implements OpenDraft, DraftHead {
  readonly sizes: CacheSizes;
  private pool: FeaturePool | null = null;

  constructor(
    private readonly head: EagleHead,
    blockSize: number,
  ) {
    const shape = head.cacheShape();
    this.sizes = { ...shape, blockSize, extraTokenBytes: head.width * dtypeSize(shape.dtype) };
  }

  hooksFor(blocks: number): RunnerHooks {
    const { dtype, device, blockSize } = this.sizes;
    const { width, fc, layers } = this.head;
    const pool = new FeaturePool({ slots: blocks * blockSize, width, dtype, device });
    this.pool = pool;
    return new FeatureWriter(pool, fc, layers);
  }

  costFor(model: CausalLM): DraftCost {
    return { step: draftCost(this.head, model), reach: this.head.reach };
  }

  modelFor({ reach, ...limits }: DraftLimits, vocabSize: number): DraftModel {
    const { head, sizes } = this;
    const pool = required(this.pool);
    head.connect((slots) => pool.read(slots));
    const { blocks, tokens, sequences, records } = limits;
    const runnerSizes = { blocks, tokens, sequences, records, reach: Math.min(reach, head.reach) };
    head.reserve(sequences);
    // Padding rows of recorded steps of several sequences have no features.
    const recorded = 'alone' as const;
    const runner = new StepRunner(head, sizes, { ...runnerSizes, recorded, hooks: head });
    return new DraftModel(runner, { tokens, vocabSize }, () => this.dispose(), this);
  }

  keep(sequences: readonly Sequence[]): void {
    if (sequences.length === 0) return;
    scope(() => {
      const outputs = this.head.outputsOf(sequences.length);
      const next = sequences.map((sequence) => this.slotOf(sequence, sequence.tokens.length));
      const slots = Tensor.from(next, { dtype: 'i32', device: this.sizes.device });
      required(this.pool).write(outputs, slots);
    });
  }

  /** Returns the cache slot of a token; -1 beyond the blocks of its sequence. */
  private slotOf({ blocks }: Sequence, index: number): number {
    const { blockSize } = this.sizes;
    const block = blocks[Math.floor(index / blockSize)];
    return block === undefined ? -1 : block * blockSize + (index % blockSize);
  }

  sleep(): void {
    this.pool?.sleep();
  }

  wake(): void {
    this.pool?.wake();
  }

  dispose(): void {
    this.head.dispose();
    this.pool?.sleep();
  }
}
