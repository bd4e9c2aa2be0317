// The angles of rotary positions: one frequency for each pair of channels, as published or
// stretched.
import { DsError } from '../../errors.js';
import type { Device } from '../../runtime/device.js';
import type { DType } from '../../runtime/dtype.js';
import { phrase } from '../../runtime/phrase.js';
import { requireFinite } from '../../runtime/require-number.js';
import { Tensor, within } from '../../tensor/index.js';

/** How frequencies change for sequences longer than those of the first training. */
export type RopeScaling =
  | {
      /** Every frequency divided by `factor`. Source: Chen et al. 2023. */
      type: 'linear';
      factor: number;
    }
  | {
      /**
       * Low frequencies divided by `factor`, high ones kept, those between blended. Source: Llama
       * 3.1.
       */
      type: 'llama3';
      factor: number;
      lowFreqFactor: number;
      highFreqFactor: number;
      /** The longest sequence of the first training. */
      originalMaxSeq: number;
    };

/** What the angles follow from. */
export interface RotarySizes {
  headDim: number;
  ropeTheta: number;
  ropeScaling: RopeScaling | null;
}

/** Throws DS_ARGUMENT for a scaling of another type, or with numbers that are none. */
export function requireScaling(scaling: RopeScaling): void {
  const op = 'Llama ropeScaling';
  if (scaling.type !== 'linear' && scaling.type !== 'llama3') {
    const got = phrase((scaling as { type: unknown }).type);
    throw new DsError({ code: 'DS_ARGUMENT', op, expected: 'type "linear" or "llama3"', got });
  }
  requireFinite(`${op}.factor`, scaling.factor, 1);
  if (scaling.type === 'linear') return;
  const low = requireFinite(`${op}.lowFreqFactor`, scaling.lowFreqFactor, Number.MIN_VALUE);
  requireFinite(`${op}.highFreqFactor`, scaling.highFreqFactor, low * (1 + Number.EPSILON));
  requireFinite(`${op}.originalMaxSeq`, scaling.originalMaxSeq, 1);
}

/** Radians per position of each pair of channels, headDim / 2 of them. Source: Su et al. 2021. */
export function rotaryFrequencies({ headDim, ropeTheta, ropeScaling }: RotarySizes): number[] {
  const plain = Array.from({ length: headDim / 2 }, (_, i) => ropeTheta ** ((-2 * i) / headDim));
  return ropeScaling ? plain.map((frequency) => scaled(frequency, ropeScaling)) : plain;
}

function scaled(frequency: number, scaling: RopeScaling): number {
  const slow = frequency / scaling.factor;
  if (scaling.type === 'linear') return slow;
  const { lowFreqFactor: low, highFreqFactor: high, originalMaxSeq } = scaling;
  const turns = (originalMaxSeq * frequency) / (2 * Math.PI);
  if (turns > high) return frequency;
  if (turns < low) return slow;
  const share = (turns - low) / (high - low);
  return (1 - share) * slow + share * frequency;
}

/** Cosines and sines of some positions, [T, headDim / 2], views that the caller's scope frees. */
export interface Angles {
  cos: Tensor;
  sin: Tensor;
}

/** A table of angles, made once for a device; no state of the model, and in no checkpoint. */
export class RotaryTable {
  private readonly made = new Map<string, Angles>();

  constructor(
    private readonly sizes: RotarySizes,
    private readonly maxSeq: number,
  ) {}

  /** Those of positions `start` to `start + count - 1`, for values of `dtype` on `device`. */
  at(start: number, count: number, { dtype, device }: { dtype: DType; device: Device }): Angles {
    const wide = dtype === 'f64' ? 'f64' : 'f32';
    const key = `${device.name} ${wide}`;
    const { cos, sin } = this.made.get(key) ?? this.make(key, wide, device);
    return { cos: cos.narrow(0, start, count), sin: sin.narrow(0, start, count) };
  }

  private make(key: string, dtype: DType, device: Device): Angles {
    const frequencies = rotaryFrequencies(this.sizes);
    const shape = [this.maxSeq, frequencies.length];
    const tableOf = (body: (angle: number) => number): Tensor => {
      const values = Array.from({ length: this.maxSeq }, (_, position) =>
        frequencies.map((frequency) => body(position * frequency)),
      );
      return Tensor.from(values.flat(), { shape, dtype, device });
    };
    const angles = within(null, () => ({ cos: tableOf(Math.cos), sin: tableOf(Math.sin) }));
    this.made.set(key, angles);
    return angles;
  }
}
