// The formulas of the 1-bit optimizers for several ranks, in plain JavaScript. All ranks are in one
// process, all elements in one row.
import { ExchangeSimulation, type Piece } from '../support/sign-exchange.js';

const { abs, max, min, sqrt } = Math;

/** A parameter in the row, and the settings of its group. */
export interface Place extends Piece {
  shape: readonly number[];
  lr: number;
  weightDecay: number;
}

/** The row of all buckets; ranks exchange each bucket as a whole. */
export interface Row {
  ranks: number;
  places: readonly Place[];
  /** In order, from 0 to the end. */
  buckets: readonly Piece[];
  initial: Float64Array;
}

const BETA1 = 0.9;
const BETA2 = 0.999;
const EPS = 1e-8;

type Vector = Float64Array;

/** State of one rank, or of all ranks. */
abstract class Rule {
  readonly p: Vector[];
  readonly m: Vector[];
  readonly v: Vector;
  protected readonly n: number;
  private made: ExchangeSimulation[] | null = null;

  constructor(protected readonly row: Row) {
    this.n = row.initial.length;
    const each = <T>(make: () => T): T[] => Array.from({ length: row.ranks }, make);
    this.p = each(() => row.initial.slice());
    this.m = each(() => new Float64Array(this.n));
    this.v = new Float64Array(this.n);
  }

  /** Update number `t`, from 1, with the gradient of each rank. */
  abstract step(t: number, grads: readonly Vector[]): void;

  protected readonly levels: 'rms' | 'means' = 'rms';

  private get exchanges(): ExchangeSimulation[] {
    this.made ??= this.row.buckets.map(
      ({ start, numel }) =>
        new ExchangeSimulation(numel, this.row.ranks, this.segments(start, numel), this.levels),
    );
    return this.made;
  }

  protected piecesOf({ start, numel }: Place): Piece[] {
    return [{ start, numel }];
  }

  protected reset(): void {
    for (const exchange of this.exchanges) exchange.reset();
  }

  /** The average of `values` over the ranks. */
  protected exchange(values: readonly Vector[]): Vector {
    const out = new Float64Array(this.n);
    this.row.buckets.forEach(({ start, numel }, i) => {
      const localRows = values.map((value) =>
        Float32Array.from(value.subarray(start, start + numel)),
      );
      out.set(this.exchanges[i]!.average(localRows), start);
    });
    return out;
  }

  protected mean(grads: readonly Vector[]): Vector {
    return Float64Array.from(
      { length: this.n },
      (_, i) => grads.reduce((sum, grad) => sum + grad[i]!, 0) / grads.length,
    );
  }

  /** Calls body(i, place) for each element of a parameter. */
  protected each(body: (i: number, place: Place) => void): void {
    for (const place of this.row.places)
      for (let i = place.start; i < place.start + place.numel; ++i) body(i, place);
  }

  protected adam(p: Vector, m: Vector): void {
    this.each((i, { lr, weightDecay }) => {
      const u = m[i] === 0 ? 0 : m[i]! / (sqrt(this.v[i]!) + EPS);
      p[i]! -= lr * (u + weightDecay * p[i]!);
    });
  }

  protected moments(m: Vector, grad: Vector, { withV = true } = {}): void {
    this.each((i) => {
      m[i] = BETA1 * m[i]! + (1 - BETA1) * grad[i]!;
      if (withV) this.v[i] = BETA2 * this.v[i]! + (1 - BETA2) * grad[i]! ** 2;
    });
  }

  private segments(start: number, numel: number): Piece[] {
    const inside = this.row.places.filter(
      (place) => place.start >= start && place.start < start + numel,
    );
    return inside
      .flatMap((place) => this.piecesOf(place))
      .map((piece) => ({ start: piece.start - start, numel: piece.numel }));
  }
}

export class OneBitAdamRule extends Rule {
  constructor(
    row: Row,
    private readonly freeze: number,
  ) {
    super(row);
  }

  step(t: number, grads: readonly Vector[]): void {
    const [p, m] = [this.p[0]!, this.m[0]!];
    if (t <= this.freeze) this.moments(m, this.mean(grads));
    else {
      if (t === this.freeze + 1) this.reset();
      const localRows = grads.map((grad) => m.map((x, i) => BETA1 * x + (1 - BETA1) * grad[i]!));
      const agreed = this.exchange(localRows);
      m.set(agreed.map((x, i) => (this.v[i] === 0 ? 0 : x)));
    }
    this.adam(p, m);
    for (const other of this.p) other.set(p);
  }
}

export interface ZeroOneSettings {
  varFreeze: number;
  varScaler: number;
  localScaler: number;
  clipper: number;
}

/** With the counters of DeepSpeed's loop. */
export class ZeroOneAdamRule extends Rule {
  private varInterval = 1;
  private varCounter = 0;
  private localInterval = 1;
  private localCounter = 0;
  private rate = 0;
  private anchor: Vector;
  /** The kind of each update. */
  readonly kinds: string[] = [];

  constructor(
    row: Row,
    private readonly settings: ZeroOneSettings,
  ) {
    super(row);
    this.anchor = row.initial.slice();
  }

  step(t: number, grads: readonly Vector[]): void {
    if (t <= this.settings.varFreeze) this.first(t, grads);
    else this.second(t, grads);
  }

  private first(t: number, grads: readonly Vector[]): void {
    const isVariance = t % this.varInterval === 0;
    this.kinds.push(isVariance ? 'variance' : 'gradient');
    const all = isVariance ? this.mean(grads) : this.exchange(grads);
    const live = isVariance ? all : all.map((g, i) => (this.v[i] === 0 ? 0 : g));
    this.moments(this.m[0]!, live, { withV: isVariance });
    this.adam(this.p[0]!, this.m[0]!);
    for (const [r, p] of this.p.entries()) {
      p.set(this.p[0]!);
      this.m[r]!.set(this.m[0]!);
    }
    if (isVariance && ++this.varCounter === this.settings.varScaler) {
      this.varCounter = 0;
      this.varInterval *= 2;
    }
  }

  private second(t: number, grads: readonly Vector[]): void {
    if (t === this.settings.varFreeze + 1) this.reset();
    if (this.rate === 0) this.anchor = this.p[0]!.slice();
    const rates = this.row.places[0]!.lr;
    this.rate += rates;
    for (const [r, p] of this.p.entries()) {
      const live = grads[r]!.map((g, i) => (this.v[i] === 0 ? 0 : g));
      this.moments(this.m[r]!, live, { withV: false });
      this.adam(p, this.m[r]!);
    }
    const agrees = t % this.localInterval === 0;
    this.kinds.push(agrees ? 'agree' : 'local');
    if (agrees) this.agree(this.rate / rates);
    if (++this.localCounter === this.settings.localScaler) {
      this.localCounter = 0;
      this.localInterval = min(this.settings.clipper, this.localInterval * 2);
    }
  }

  /** Synchronizes after `updates` updates with one rate. */
  agree(updates = this.rate / this.row.places[0]!.lr): void {
    const drift = this.p.map((p) =>
      p.map((x, i) => (x - this.anchor[i]!) * (sqrt(this.v[i]!) + EPS)),
    );
    const u = this.exchange(drift);
    for (const [r, p] of this.p.entries()) {
      this.each((i, { lr }) => {
        const isLive = this.v[i] !== 0;
        this.m[r]![i] = isLive ? -u[i]! / (lr * updates) : 0;
        if (isLive) p[i] = this.anchor[i]! + u[i]! / (sqrt(this.v[i]!) + EPS);
      });
    }
    this.rate = 0;
  }
}

export interface LambSettings {
  freeze: number;
  minCoeff: number;
  maxCoeff: number;
  beta: number;
  factorMin: number;
  factorMax: number;
  threshold: number;
}

export class OneBitLambRule extends Rule {
  private readonly frozen: number[];
  private readonly factors: number[];
  private fresh = new Float64Array();
  readonly coefficients: number[];

  constructor(
    row: Row,
    private readonly settings: LambSettings,
  ) {
    super(row);
    this.frozen = row.places.map(() => 0);
    this.factors = row.places.map(() => 1);
    this.coefficients = row.places.map(() => 1);
  }

  step(t: number, grads: readonly Vector[]): void {
    const [p, m] = [this.p[0]!, this.m[0]!];
    if (t <= this.settings.freeze) this.warmUp(p, m, this.mean(grads));
    else {
      if (t === this.settings.freeze + 1) {
        this.reset();
        this.fresh = this.v.slice();
      }
      this.compress(p, m, grads);
    }
    for (const other of this.p) other.set(p);
  }

  private warmUp(p: Vector, m: Vector, grad: Vector): void {
    this.moments(m, grad);
    this.row.places.forEach((place, k) => {
      const { direction } = this.update(place, p, m);
      const norms = [norm(this.part(place, p)), norm(direction)] as const;
      let ratio = norms[0] > 0 && norms[1] > 0 ? norms[0] / norms[1] : 1;
      if (ratio !== 1) ratio = max(this.settings.minCoeff, min(this.settings.maxCoeff, ratio));
      this.coefficients[k] = ratio;
      if (ratio !== 1) {
        this.frozen[k] = this.settings.beta * this.frozen[k]! + (1 - this.settings.beta) * ratio;
      }
      this.apply(place, p, ratio, direction);
    });
  }

  private compress(p: Vector, m: Vector, grads: readonly Vector[]): void {
    const localRows = grads.map((grad) => m.map((x, i) => BETA1 * x + (1 - BETA1) * grad[i]!));
    const before = m.slice();
    m.set(this.exchange(localRows).map((x, i) => (this.v[i] === 0 ? 0 : x)));
    this.row.places.forEach((place, k) => {
      const { factorMin, factorMax, threshold } = this.settings;
      let factor = 0;
      for (let i = place.start; i < place.start + place.numel; ++i) {
        if (this.v[i] === 0) continue;
        const grad = (m[i]! - BETA1 * before[i]!) / (1 - BETA1);
        this.fresh[i] = BETA2 * this.fresh[i]! + (1 - BETA2) * grad * grad;
        factor = max(factor, (sqrt(this.v[i]!) + EPS) / (sqrt(this.fresh[i]!) + EPS));
      }
      const { plain, direction } = this.update(place, p, m);
      if (place.weightDecay > 0) {
        const q = min(1, norm(plain) / norm(direction));
        factor = factor * q + 1 - q;
      }
      factor = max(factorMin, min(factorMax, factor));
      const last = this.factors[k]!;
      factor = max(last * (1 - threshold), min(last * (1 + threshold), factor));
      this.factors[k] = factor;
      this.coefficients[k] = this.frozen[k]! * factor;
      this.apply(place, p, this.coefficients[k]!, direction);
    });
  }

  private part({ start, numel }: Place, x: Vector): Vector {
    return x.subarray(start, start + numel);
  }

  private update(place: Place, p: Vector, m: Vector): { plain: Vector; direction: Vector } {
    const v = this.part(place, this.v);
    const plain = this.part(place, m).map((x, i) => (x === 0 ? 0 : x / (sqrt(v[i]!) + EPS)));
    const direction = plain.map((x, i) => x + place.weightDecay * p[place.start + i]!);
    return { plain, direction };
  }

  private apply({ start, lr }: Place, p: Vector, ratio: number, direction: Vector): void {
    direction.forEach((u, i) => {
      p[start + i]! -= lr * ratio * u;
    });
  }
}

/** With momentum 0.9 and a row of weights for each pair of levels. */
export class OneBitSgdRule extends Rule {
  protected override readonly levels = 'means';

  constructor(
    row: Row,
    private readonly freeze: number,
  ) {
    super(row);
  }

  protected override piecesOf({ start, numel, shape }: Place): Piece[] {
    const size = shape.length > 1 ? numel / shape[0]! : 1;
    return Array.from({ length: numel / size }, (_, i) => ({
      start: start + i * size,
      numel: size,
    }));
  }

  step(t: number, grads: readonly Vector[]): void {
    if (t === this.freeze + 1) this.reset();
    const grad = t <= this.freeze ? this.mean(grads) : this.exchange(grads);
    const [p, m] = [this.p[0]!, this.m[0]!];
    this.each((i, { lr, weightDecay }) => {
      const d = grad[i]! + weightDecay * p[i]!;
      m[i] = t === 1 ? d : 0.9 * m[i]! + d;
      p[i]! -= lr * m[i]!;
    });
    for (const other of this.p) other.set(p);
  }
}

const norm = (x: Vector): number => sqrt(x.reduce((sum, v) => sum + v * v, 0));

/** The largest difference, relative to the largest value. */
export function distance(got: ArrayLike<number>, want: Vector): number {
  let [error, size] = [0, 0];
  for (let i = 0; i < want.length; ++i) {
    const difference = abs(got[i]! - want[i]!);
    error = max(error, Number.isNaN(difference) ? Number.POSITIVE_INFINITY : difference);
    size = max(size, abs(want[i]!));
  }
  return error / size;
}
