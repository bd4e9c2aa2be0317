// Tables of cosines and sines by position, built on demand and cached by device.
import { DsError } from '../../errors.js';
import type { Device } from '../../runtime/device.js';
import type { DType } from '../../runtime/dtype.js';
import { leading } from '../../runtime/required.js';
import { concat, Tensor, within } from '../../tensor/index.js';
import { type AngleSizes, angleRegime, type RopeScaling, rotaryRule } from './rope-scaling.js';

/** Angles of some positions; views that the caller's scope frees. */
export interface Angles {
  /** Cosines, [T, R / 2] f32, of R channels of a head; f64 for f64. */
  cos: Tensor;
  /** Sines, likewise. */
  sin: Tensor;
}

/** Dtype and device of the values to rotate. */
interface Values {
  dtype: DType;
  device: Device;
}

/**
 * Number of cached tables. If the scaling depends on the length, the cache has the tables of the
 * last lengths.
 */
const KEPT = 4;

/** Fewest rows of a table that lasts: 2 MiB for 64 angles. */
const LASTING_ROWS = 4096;

/**
 * Tables of angles, built once per device. They are not part of the model's state or checkpoints.
 */
export class RotaryTable {
  /** Tables that a longer one replaces. */
  private readonly tables = new Map<string, Angles>();
  /** Tables of lastingRows(), by key and number of rows. */
  private readonly lasting = new Map<string, Angles>();

  constructor(
    private readonly sizes: AngleSizes,
    private readonly scaling: RopeScaling | null,
    private readonly maxSeq: number,
    /** Factor of cosines and sines by position, which scales queries; null: none. */
    private readonly factorAt: ((position: number) => number) | null = null,
  ) {}

  /**
   * Returns the angles of positions `start` to `start + count - 1` of a sequence of `length`
   * tokens, for values like `like`.
   */
  rowsAt(start: number, count: number, { length, like }: { length: number; like: Values }): Angles {
    const { cos, sin } = this.table(start + count, length, like);
    return { cos: cos.narrow(0, start, count), sin: sin.narrow(0, start, count) };
  }

  /**
   * Returns the angles of positions below `count`, or of more, for sequences that count as `length`
   * tokens long. The table stays in its place until release(): recorded steps hold its address. If
   * a call needs more rows, it gets another table of twice as many.
   */
  lastingRows(count: number, { length, like }: { length: number; like: Values }): Angles {
    const rows = this.roundUp(Math.max(count, LASTING_ROWS), count);
    const key = `${this.keyOf(length, like)} ${rows}`;
    const angles = this.lasting.get(key) ?? this.createTable(rows, length, like);
    this.lasting.set(key, angles);
    const { cos, sin } = angles;
    return { cos: cos.narrow(0, 0, rows), sin: sin.narrow(0, 0, rows) };
  }

  /** Frees all tables; they are rebuilt when needed. */
  release(): void {
    for (const tables of [this.tables, this.lasting])
      for (const key of [...tables.keys()]) drop(tables, key);
  }

  /** A table of `rows` positions or more. */
  private table(rows: number, length: number, like: Values): Angles {
    const { tables } = this;
    const key = this.keyOf(length, like);
    const cached = tables.get(key);
    if (cached && cached.cos.size(0) >= rows) return cached;
    drop(tables, key);
    for (const oldest of [...tables.keys()].slice(0, -KEPT + 1)) drop(tables, oldest);
    const angles = this.createTable(this.roundUp(rows, rows), length, like);
    tables.set(key, angles);
    return angles;
  }

  /** Tables with one key differ in their number of rows only. */
  private keyOf(length: number, { dtype, device }: Values): string {
    return `${device.name} ${dtypeOf(dtype)} ${angleRegime(this.scaling, length)}`;
  }

  /** Returns the next power of two from `rows`, at most maxSeq, and at least `least`. */
  private roundUp(rows: number, least: number): number {
    const grown = Math.min(this.maxSeq, 2 ** Math.ceil(Math.log2(Math.max(rows, 2))));
    return Math.max(least, grown);
  }

  private createTable(rows: number, length: number, { dtype, device }: Values): Angles {
    return within(null, () => this.fillTable(rows, length, dtypeOf(dtype), device));
  }

  private fillTable(rows: number, length: number, dtype: 'f32' | 'f64', device: Device): Angles {
    const { frequencies, magnitude } = rotaryRule(this.sizes, this.scaling, length);
    const width = frequencies.length;
    requireRoom(rows, width);
    const { factorAt } = this;
    const List = dtype === 'f64' ? Float64Array : Float32Array;
    const computeTable = (body: (angle: number) => number): Tensor => {
      const values = new List(rows * width);
      for (let row = 0; row < rows; ++row) {
        const factor = magnitude * (factorAt?.(row) ?? 1);
        frequencies.forEach((frequency, i) => {
          values[row * width + i] = factor * body(row * frequency);
        });
      }
      return Tensor.from(values, { shape: [rows, width], dtype, device });
    };
    const sign = this.sizes.backward ? -1 : 1;
    return { cos: computeTable(Math.cos), sin: computeTable((angle) => sign * Math.sin(angle)) };
  }
}

const dtypeOf = (dtype: DType): 'f32' | 'f64' => (dtype === 'f64' ? 'f64' : 'f32');

function drop(tables: Map<string, Angles>, key: string): void {
  const cached = tables.get(key);
  cached?.cos.dispose();
  cached?.sin.dispose();
  tables.delete(key);
}

/** Maximum number of elements of a table, 4 GiB of f32. */
const MAX_ELEMENTS = 2 ** 30;

function requireRoom(rows: number, width: number): void {
  if (rows * width <= MAX_ELEMENTS) return;
  const max = Math.floor(MAX_ELEMENTS / width);
  throw new DsError({
    code: 'DS_LIMIT',
    op: 'table of rotary angles',
    expected: `at most ${max} positions`,
    got: String(rows),
    hint: 'Lower maxSeq, which is max_position_embeddings in config.json.',
  });
}

/**
 * Moves channel 2i of the first `width` channels of each head to i, and 2i + 1 to i + width / 2, as
 * rope() expects. Queries and keys get the same permutation, so their products stay the same.
 */
export function pairsToHalves(heads: Tensor, width: number): Tensor {
  const [B, T, H, D] = leading(heads.shape, 4);
  const pairs = heads.narrow(3, 0, width).reshape([B, T, H, width / 2, 2]);
  const halves = pairs.transpose(3, 4).reshape([B, T, H, width]);
  return width < D ? concat([halves, heads.narrow(3, width, D - width)], 3) : halves;
}
