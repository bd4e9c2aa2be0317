// BatchShapes: pipeline ranks exchange the shapes of their batches, so that the error of a failed
// batch can list different shapes.

import { setTimeout as pause } from 'node:timers/promises';
import type { Axis, Distributed } from '../../comm/index.js';
import { DsError } from '../../errors.js';
import type { PipelineBatch } from '../../pipe/index.js';
import { leading } from '../../runtime/required.js';
import { tensorsIn } from '../../tensor/index.js';
import { MODEL } from '../ranks.js';
import { mismatchError } from './copy-check.js';

/** Milliseconds to wait for a rank that begins its batch later. */
const PATIENCE_MS = 1000;
const INTERVAL_MS = 50;

type Part = 'inputs' | 'labels';

/** Shapes and dtypes of inputs and labels, as text. Null if a part has no tensor. */
type Shapes = Readonly<Record<Part, string | null>>;

/**
 * Compares the batch shapes of ranks after a failure. Each rank writes its shapes to the job's
 * store when they change. Constant shapes are therefore written once.
 */
export class BatchShapes {
  private readonly name: string;
  private reportedText = '';

  /** Every rank of the job must create it in the same order. */
  constructor(private readonly job: Distributed) {
    this.name = job.nextName('batch shapes');
  }

  async report(batches: readonly PipelineBatch[]): Promise<void> {
    const { store, rank } = this.job;
    if (!store || batches.length === 0) return;
    const [inputs, labels] = [0, 1].map((part) => shapesOf(batches.map((batch) => batch[part])));
    const text = JSON.stringify({ inputs, labels } as Shapes);
    if (text === this.reportedText) return;
    this.reportedText = text;
    await store.set(this.keyOf(rank), text);
  }

  /**
   * Explains `error`, this rank's error in step `step`. If another rank of the same model has other
   * batch shapes, returns a DS_COMM error with both ranks. Else returns `error`.
   */
  async explain(error: unknown, step: number): Promise<unknown> {
    const { store } = this.job;
    const isOwn = !(error instanceof DsError && error.code === 'DS_COMM');
    if (!isOwn || !store || this.reportedText === '') return error;
    const own = JSON.parse(this.reportedText) as Shapes;
    for (const rank of this.readers()) {
      const what = await this.findDifference(own, rank).catch(() => null);
      if (!what) continue;
      const ranks = leading(
        [rank, this.job.rank].sort((a, b) => a - b),
        2,
      );
      return mismatchError({ ranks, axes: this.axes(), what }, step, `shapes of ${what}`);
    }
    return error;
  }

  /** Returns the other ranks of this rank's model that read batches. */
  private readers(): number[] {
    const { mesh, rank } = this.job;
    const { shape } = mesh;
    const last = shape.sizes.pp - 1;
    return shape
      .ranksAlong(rank, ...MODEL)
      .filter((value) => value !== rank && [0, last].includes(shape.coordinates(value).pp));
  }

  private axes(): Axis[] {
    const { sizes } = this.job.mesh.shape;
    return MODEL.filter((axis) => sizes[axis] > 1);
  }

  /** Returns the part with shapes that still differ on `rank` after PATIENCE_MS, or null. */
  private async findDifference(own: Shapes, rank: number): Promise<Part | null> {
    const deadline = Date.now() + PATIENCE_MS;
    for (;;) {
      const text = await this.job.store?.get(this.keyOf(rank), PATIENCE_MS);
      const found = findOtherPart(own, JSON.parse(text ?? '') as Shapes);
      if (!found || Date.now() >= deadline) return found;
      await pause(INTERVAL_MS);
    }
  }

  private keyOf(rank: number): string {
    return `${this.name}/${rank}`;
  }
}

function shapesOf(values: readonly unknown[]): string | null {
  const tensors = tensorsIn(values);
  return tensors.length === 0
    ? null
    : tensors.map(({ dtype, shape }) => `${dtype} [${shape.join()}]`).join(' ');
}

const findOtherPart = (own: Shapes, other: Shapes): Part | null =>
  (['inputs', 'labels'] as const).find(
    (part) => own[part] !== null && other[part] !== null && own[part] !== other[part],
  ) ?? null;
