// The compressed exchange of one bit per element in plain JavaScript, the reference for ops and
// collectives.

const { fround, sqrt } = Math;

/** Elements [start, start + numel) with their own two levels. */
export interface Piece {
  start: number;
  numel: number;
}

export type Levels = 'rms' | 'means';

/** The levels of `x`, for negative values and for others. */
export function levelsOf(x: readonly number[], kind: Levels): [low: number, high: number] {
  if (kind === 'rms') {
    const scale = x.length > 0 ? fround(sqrt(x.reduce((sum, v) => sum + v * v, 0) / x.length)) : 0;
    return [-scale, scale];
  }
  const mean = (of: readonly number[]): number =>
    of.length > 0 ? fround(of.reduce((sum, v) => sum + v, 0) / of.length) : 0;
  return [mean(x.filter((v) => v < 0)), mean(x.filter((v) => !(v < 0)))];
}

/**
 * Compresses value + error, and updates the error. Between pieces, values are zero and errors are
 * unchanged.
 */
export function roundPieces(
  value: Float32Array,
  error: Float32Array,
  pieces: readonly Piece[],
  kind: Levels,
): Float32Array {
  const out = new Float32Array(value.length);
  for (const { start, numel } of pieces) {
    const at = Array.from({ length: numel }, (_, i) => start + i);
    const x = at.map((i) => fround((value[i] as number) + (error[i] as number)));
    const [low, high] = levelsOf(x, kind);
    at.forEach((i, k) => {
      const q = (x[k] as number) < 0 ? low : high;
      out[i] = q;
      error[i] = fround((x[k] as number) - q);
    });
  }
  return out;
}

/** `pieces`, split at the boundaries between the parts of `ranks` owners of `numel` elements. */
export function cutAtOwners(pieces: readonly Piece[], numel: number, ranks: number): Piece[] {
  const part = numel / ranks;
  return pieces.flatMap(({ start, numel: count }) => {
    const cut: Piece[] = [];
    for (let from = start; from < start + count; ) {
      const end = Math.min(start + count, (Math.floor(from / part) + 1) * part);
      cut.push({ start: from, numel: end - from });
      from = end;
    }
    return cut;
  });
}

/** All ranks of an exchange of vectors, in one process. */
export class ExchangeSimulation {
  /** By rank. */
  readonly workers: Float32Array[];
  /** Parts of all owners, concatenated. */
  readonly owners: Float32Array;
  private readonly pieces: readonly Piece[];

  constructor(
    numel: number,
    private readonly ranks: number,
    pieces: readonly Piece[],
    private readonly kind: Levels,
  ) {
    this.workers = Array.from({ length: ranks }, () => new Float32Array(numel));
    this.owners = new Float32Array(numel);
    this.pieces = cutAtOwners(pieces, numel, ranks);
  }

  reset(): void {
    for (const error of [...this.workers, this.owners]) error.fill(0);
  }

  /** The common result of the ranks. */
  average(values: readonly Float32Array[]): Float32Array {
    const { kind, pieces, ranks } = this;
    const sent = values.map((value, rank) =>
      roundPieces(value, this.workers[rank] as Float32Array, pieces, kind),
    );
    const [first = new Float32Array(), ...others] = sent;
    const mean = first.slice();
    const share = fround(1 / ranks);
    for (const other of others) {
      for (const [i, q] of other.entries()) mean[i] = (mean[i] as number) + q;
    }
    if (ranks > 1) for (const [i, sum] of mean.entries()) mean[i] = sum * share;
    return roundPieces(mean, this.owners, pieces, kind);
  }
}
