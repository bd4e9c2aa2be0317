// Predicts which weights of stage 3 are gathered during a step, by a simulation of GatheredWeights
// and UnitTrace of lib/zero with element counts.
import { required } from '../runtime/required.js';
import type { ModelSizes } from './model-sizes.js';
import type { Setup } from './setup.js';

/** Gathered elements of a step. */
interface Gathers {
  /**
   * Gathered elements in backward: at the head, then in each block in backward order. Each value is
   * the maximum over the micro-batches.
   */
  readonly live: readonly number[];
  /**
   * The part of `live` that waits for its first use at that moment, so its gather may be in flight.
   */
  readonly inFlight: readonly number[];
  /** Elements gathered per micro-batch. */
  readonly perMicroBatch: number;
}

/** Settings that control gathering and release. */
type Limits = Pick<
  Setup,
  'prefetch' | 'maxLive' | 'maxReuse' | 'persistence' | 'modelPersistence' | 'accumulation'
>;
type Units = Pick<ModelSizes, 'root' | 'block' | 'layers'>;

/** Index of the unit with embeddings and head. Block i of the model is unit i + 1. */
const ROOT = 0;
/**
 * Micro-batches to simulate. The first starts without gathered weights; all later micro-batches
 * equal the second.
 */
const DISTINCT_PASSES = 2;

let last: { key: string; gathers: Gathers } | null = null;

/** Simulates a step with a known order of units. Caches the last result. */
export function simulateGathers({ root, block, layers }: Units, setup: Setup): Gathers {
  const { prefetch, maxLive, maxReuse, persistence, modelPersistence } = setup;
  const limits = [prefetch, maxLive, maxReuse, persistence, modelPersistence];
  const key = [root, block, layers, setup.accumulation > 1, ...limits].join(' ');
  if (last?.key !== key)
    last = { key, gathers: new GatherSimulation({ root, block, layers }, setup).run() };
  return last.gathers;
}

class GatherSimulation {
  private readonly order: readonly number[];
  private readonly passes: number;
  private readonly gathered = new Set<number>();
  private readonly unused = new Set<number>();
  private readonly persistent: ReadonlySet<number>;
  /** Index in `order` of the current unit. */
  private position = 0;
  private live = 0;
  private total = 0;

  constructor(
    private readonly units: Units,
    private readonly limits: Limits,
  ) {
    const blocks = Array.from({ length: units.layers }, (_, i) => i + 1);
    const pass = [ROOT, ...blocks, ROOT, ...blocks.toReversed(), ROOT];
    this.passes = Math.min(limits.accumulation, DISTINCT_PASSES);
    // Consecutive uses of a unit count once: a pass ends with the first unit of the next pass.
    const following = pass.slice(1);
    this.order = [...pass, ...Array.from({ length: this.passes - 1 }, () => following).flat()];
    this.persistent = this.findPersistent(blocks);
  }

  run(): Gathers {
    const { layers } = this.units;
    const live = new Array<number>(layers + 1).fill(0);
    const inFlight = [...live];
    const record = (done: number): void => {
      if (this.live < required(live[done])) return;
      live[done] = this.live;
      inFlight[done] = [...this.unused].reduce((sum, unit) => sum + this.sizeOf(unit), 0);
    };
    let position = 0;
    for (let pass = 0; pass < this.passes; pass++) {
      if (pass === 0) this.use(position);
      for (let i = 0; i < layers; i++) this.useAndRelease(++position);
      this.release(ROOT);
      this.use(++position);
      record(0);
      for (let done = 1; done <= layers; done++) {
        this.use(++position);
        record(done);
        this.release(required(this.order[position]));
      }
      this.use(++position);
      for (const unit of [...this.gathered]) this.release(unit);
    }
    return { live, inFlight, perMicroBatch: this.total / this.passes };
  }

  private sizeOf(unit: number): number {
    return unit === ROOT ? this.units.root : this.units.block;
  }

  private findPersistent(blocks: readonly number[]): ReadonlySet<number> {
    const { persistence, modelPersistence } = this.limits;
    const units = new Set<number>();
    let total = 0;
    for (const unit of [...blocks, ROOT]) {
      const size = this.sizeOf(unit);
      if (size > persistence || total + size > modelPersistence) continue;
      total += size;
      units.add(unit);
    }
    return units;
  }

  private useAndRelease(position: number): void {
    this.use(position);
    this.release(required(this.order[position]));
  }

  private use(position: number): void {
    this.position = position;
    const unit = required(this.order[position]);
    this.gather(unit);
    this.unused.delete(unit);
    this.fetchAhead();
  }

  private gather(unit: number): void {
    if (this.gathered.has(unit)) return;
    this.gathered.add(unit);
    this.unused.add(unit);
    this.live += this.sizeOf(unit);
    this.total += this.sizeOf(unit);
  }

  private fetchAhead(): void {
    const { prefetch, maxLive } = this.limits;
    let ahead = 0;
    for (let i = this.position + 1; i < this.order.length && ahead < prefetch; i++) {
      const unit = required(this.order[i]);
      ahead += this.sizeOf(unit);
      if (this.gathered.has(unit)) continue;
      if (this.live + this.sizeOf(unit) > maxLive) return;
      this.gather(unit);
    }
  }

  private release(unit: number): void {
    if (!this.gathered.has(unit) || this.persistent.has(unit)) return;
    const { maxLive, maxReuse } = this.limits;
    if (this.live <= maxLive && this.isUsedWithin(unit, maxReuse)) return;
    this.gathered.delete(unit);
    this.live -= this.sizeOf(unit);
  }

  private isUsedWithin(unit: number, max: number): boolean {
    let distance = 0;
    for (let i = this.position + 1; i < this.order.length && distance <= max; i++) {
      const next = required(this.order[i]);
      if (next === unit) return true;
      distance += this.sizeOf(next);
    }
    return false;
  }
}
