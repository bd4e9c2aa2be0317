// How far apart two sets of trained weights are.
import type { Trained } from './train-process.js';

type Weights = Pick<Trained, 'weights'>;

/** The largest and the mean difference. */
export function distances(
  a: Weights,
  b: Weights,
  precision: 'fp32' | 'bf16' = 'fp32',
): { worst: number; mean: number } {
  let [worst, sum, count] = [0, 0, 0];
  for (const [name, text] of Object.entries(a.weights ?? {})) {
    const [one, other] = [text, b.weights?.[name] as string].map((base64) =>
      floats(Buffer.from(base64, 'base64'), precision),
    ) as [Float32Array, Float32Array];
    one.forEach((value, i) => {
      const difference = Math.abs(value - (other[i] as number));
      worst = Math.max(worst, difference);
      sum += difference;
      count++;
    });
  }
  return { worst, mean: sum / count };
}

function floats(raw: Buffer, precision: 'fp32' | 'bf16'): Float32Array {
  if (precision === 'fp32') return new Float32Array(new Uint8Array(raw).buffer);
  const upper = new Uint16Array(new Uint8Array(raw).buffer);
  return new Float32Array(Uint32Array.from(upper, (bits) => bits * 65_536).buffer);
}
