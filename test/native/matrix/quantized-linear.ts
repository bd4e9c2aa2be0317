// Cases of QuantizeWeights, DequantizeWeights, QuantizedLinear and RepackCodes: odd sizes, partial
// groups and words, no rows, poisoned outputs.
import type { DType } from '../../../lib/runtime/dtype.js';
import { close, exact, input, type MatrixCase, opCase, output } from './harness.js';
import { unaligned } from './layouts.js';
import { type Random, roundTo } from './numbers.js';

const { ceil, floor, fround } = Math;
const narrow: readonly DType[] = ['f32', 'bf16', 'f16'];

interface Sizes {
  outputs: number;
  inputs: number;
  bits: number;
  group: number;
}

/** Rows that fill packets of tensor cores, and rows that do not; one step per row, and several. */
const sizes: readonly Sizes[] = [
  { outputs: 33, inputs: 256, bits: 4, group: 64 },
  { outputs: 16, inputs: 160, bits: 4, group: 32 },
  { outputs: 5, inputs: 96, bits: 4, group: 1000 },
  { outputs: 7, inputs: 43, bits: 4, group: 16 },
  { outputs: 18, inputs: 192, bits: 8, group: 192 },
  { outputs: 3, inputs: 48, bits: 8, group: 16 },
  { outputs: 1, inputs: 1, bits: 8, group: 1 },
  { outputs: 9, inputs: 21, bits: 8, group: 8 },
];

/** Row counts of x on tensor cores: each tile of 8, and more than one group in a step of 128. */
const everyRow: readonly Sizes[] = [
  { outputs: 35, inputs: 288, bits: 4, group: 128 },
  { outputs: 19, inputs: 96, bits: 4, group: 32 },
  { outputs: 34, inputs: 208, bits: 8, group: 208 },
];

/** More output tiles than a GPU runs at once, and more input steps than are in flight. */
const largest: readonly Sizes[] = [
  { outputs: 4300, inputs: 128, bits: 4, group: 128 },
  { outputs: 4290, inputs: 64, bits: 8, group: 64 },
  { outputs: 35, inputs: 7200, bits: 4, group: 128 },
  { outputs: 19, inputs: 3728, bits: 8, group: 3728 },
  { outputs: 21, inputs: 3712, bits: 4, group: 32 },
];

/**
 * A single row of symmetric codes with steps of its dtype. Sizes cover segments without inputs and
 * an output after the last pair. They also cover more pairs than a block has sums for, and one and
 * two pieces of an output per warp. The last ones have small groups, and more inputs than fit.
 */
const single: readonly Sizes[] = [
  { outputs: 37, inputs: 1664, bits: 4, group: 128 },
  { outputs: 6530, inputs: 128, bits: 4, group: 128 },
  { outputs: 210_001, inputs: 32, bits: 4, group: 32 },
  { outputs: 21, inputs: 5120, bits: 4, group: 256 },
  { outputs: 18, inputs: 16_512, bits: 4, group: 128 },
  { outputs: 13, inputs: 28_704, bits: 4, group: 28_704 },
  { outputs: 27, inputs: 2176, bits: 4, group: 64 },
  { outputs: 45, inputs: 1984, bits: 8, group: 1984 },
  { outputs: 6410, inputs: 128, bits: 8, group: 64 },
  { outputs: 35, inputs: 1040, bits: 8, group: 128 },
  { outputs: 43, inputs: 5200, bits: 8, group: 5200 },
  { outputs: 19, inputs: 14_336, bits: 8, group: 256 },
  { outputs: 17, inputs: 32_832, bits: 8, group: 32_832 },
];

const groupsOf = ({ inputs, group }: Sizes): number => ceil(inputs / group);
const wordsOf = ({ inputs, bits }: Sizes): number => ceil((inputs * bits) / 32);
const titleOf = ({ outputs, inputs, bits, group }: Sizes): string =>
  `${outputs}x${inputs}, ${bits} bits, groups of ${group}`;

/** Codes [outputs, inputs] packed into words. */
function packCodes(
  codes: ArrayLike<number>,
  { outputs, inputs, bits, group }: Sizes,
): Float64Array {
  const words = wordsOf({ outputs, inputs, bits, group });
  const perWord = 32 / bits;
  return Float64Array.from({ length: outputs * words }, (_, i) => {
    const [row, from] = [floor(i / words), (i % words) * perWord];
    let word = 0;
    for (let j = 0; j < perWord && from + j < inputs; ++j) {
      word += (codes[row * inputs + from + j] as number) * 2 ** (bits * j);
    }
    return word | 0;
  });
}

/** The codes of a row: `inputs` codes from word `from` on. */
function unpack(words: Float64Array, from: number, { inputs, bits }: Sizes): Float64Array {
  const [perWord, mask] = [32 / bits, 2 ** bits - 1];
  const codes = new Float64Array(inputs);
  for (let k = 0; k < inputs; ++k) {
    codes[k] = (words[from + floor(k / perWord)]! >>> ((k % perWord) * bits)) & mask;
  }
  return codes;
}

/** Weights [outputs, inputs]: the product rounded to f32. */
function weightsOf(v: Record<string, Float64Array>, size: Sizes): Float64Array {
  const { outputs, inputs, bits, group } = size;
  const [words, groups] = [wordsOf(size), groupsOf(size)];
  const weights = new Float64Array(outputs * inputs);
  for (let row = 0; row < outputs; ++row) {
    const codes = unpack(v.packed!, row * words, size);
    for (let g = 0; g < groups; ++g) {
      const scale = v.scale![row * groups + g]!;
      const zero = v.zero ? v.zero[row * groups + g]! : 2 ** (bits - 1);
      const end = Math.min(inputs, (g + 1) * group);
      for (let k = g * group; k < end; ++k) {
        weights[row * inputs + k] = fround((codes[k]! - zero) * scale);
      }
    }
  }
  return weights;
}

/** Words with extra bits after the last code, which kernels must not read. */
function operandsOf(random: Random, size: Sizes, scale: DType, hasZeros: boolean) {
  const { outputs, bits } = size;
  const words = outputs * wordsOf(size);
  const groups = outputs * groupsOf(size);
  return {
    packed: input('i32', [outputs, wordsOf(size)], random.integers(words, -(2 ** 31), 2 ** 31)),
    scale: input(scale, [outputs, groupsOf(size)], random.uniform(groups, 0.01, 0.1)),
    zero: hasZeros
      ? input('u8', [outputs, groupsOf(size)], random.integers(groups, 0, 2 ** bits))
      : null,
  };
}

/** Each scale is the smallest sufficient number of its dtype; in f32, the nearest. */
function stepOf(largest: number, bits: number, dtype: DType): number {
  const expected = fround(largest / ((2 ** bits - 1) / 2));
  const nearest = roundTo(expected, dtype);
  if (dtype === 'f32' || nearest >= expected) return nearest;
  let above = expected;
  for (let share = 2 ** -26; above <= nearest || roundTo(above, dtype) < expected; share *= 2) {
    above = expected * (1 + share);
  }
  return roundTo(above, dtype);
}

function even(x: number): number {
  const below = floor(x);
  if (x - below !== 0.5) return Math.round(x);
  return below % 2 === 0 ? below : below + 1;
}

const quantize = narrow.flatMap((dtype, d) =>
  sizes.map((size) =>
    opCase({
      op: 'QuantizeWeights',
      dtype,
      title: titleOf(size),
      build(random) {
        const { outputs, inputs, bits, group } = size;
        const scale = narrow[(d + bits) % 3] as DType;
        const values = random.normal(outputs * inputs);
        values.fill(0, 0, Math.min(group, inputs)); // A group of zeros.
        return {
          operands: {
            in: input(dtype, [outputs, inputs], values, unaligned),
            packed: output('i32', [outputs, wordsOf(size)], exact),
            scale: output(scale, [outputs, groupsOf(size)], exact),
          },
          args: { bits, group },
          reference: (v) => {
            const steps = Float64Array.from({ length: outputs * groupsOf(size) }, (_, at) => {
              const [row, g] = [floor(at / groupsOf(size)), at % groupsOf(size)];
              const end = Math.min(inputs, (g + 1) * group);
              const part = v.in!.subarray(row * inputs + g * group, row * inputs + end);
              return stepOf(Math.max(...part.map(Math.abs)), bits, scale);
            });
            const middle = 2 ** (bits - 1);
            const codes = v.in!.map((x, i) => {
              const at = floor(i / inputs) * groupsOf(size) + floor((i % inputs) / group);
              const step = steps[at] as number;
              if (step === 0) return middle;
              const code = even(fround(x / step)) + middle;
              return Math.min(2 * middle - 1, Math.max(0, code));
            });
            return { packed: packCodes(codes, size), scale: steps };
          },
        };
      },
    }),
  ),
);

const dequantize = narrow.flatMap((dtype, d) =>
  sizes.flatMap((size, i) =>
    opCase({
      op: 'DequantizeWeights',
      dtype,
      title: titleOf(size),
      build(random) {
        const { outputs, inputs, bits, group } = size;
        const scale = narrow[(d + i) % 3] as DType;
        const out = output(dtype, [outputs, inputs], exact, i % 2 === 0 ? {} : unaligned);
        return {
          operands: { ...operandsOf(random, size, scale, i % 2 === 0), out },
          args: { bits, group },
          reference: (v) => ({ out: weightsOf(v, size) }),
        };
      },
    }),
  ),
);

const EACH = Array.from({ length: 33 }, (_, i) => i + 1);

function rowsOf(size: Sizes): readonly number[] {
  if (single.includes(size)) return [1];
  if (largest.includes(size)) return [1, 9, 17];
  return everyRow.includes(size) ? EACH : [0, 1, 3, 8, 13, 32, 33];
}

const linear = narrow.flatMap((dtype, d) =>
  [...sizes, ...everyRow, ...largest, ...single].flatMap((size, i) =>
    rowsOf(size).map((rows) =>
      opCase({
        op: 'QuantizedLinear',
        dtype,
        title: `${rows} rows by ${titleOf(size)}`,
        build(random) {
          const { outputs, inputs, bits, group } = size;
          const isSingle = single.includes(size);
          const scale = isSingle ? dtype : (narrow[(d + i) % 3] as DType);
          const hasZeros = !isSingle && i % 3 !== 1;
          const hasBias = (rows + i) % 2 === 0;
          return {
            operands: {
              x: input(dtype, [rows, inputs], random.normal(rows * inputs)),
              ...operandsOf(random, size, scale, hasZeros),
              bias: hasBias ? input(dtype, [outputs], random.normal(outputs)) : null,
              out: output(dtype, [rows, outputs], {
                ...close(dtype, 1, 'tensor'),
                ...([...largest, ...single].includes(size) && {
                  absolute: 1e-6 * Math.sqrt(inputs),
                }),
              }),
            },
            args: { bits, group },
            reference: (v) => {
              const weights = weightsOf(v, size);
              return {
                out: Float64Array.from({ length: rows * outputs }, (_, at) => {
                  const [m, n] = [floor(at / outputs), at % outputs];
                  let sum = v.bias ? (v.bias[n] as number) : 0;
                  for (let k = 0; k < inputs; ++k) {
                    sum += (v.x![m * inputs + k] as number) * (weights[n * inputs + k] as number);
                  }
                  return sum;
                }),
              };
            },
          };
        },
      }),
    ),
  ),
);

/** The position of output j of eight in an AWQ word, from the lowest bits. */
const AWQ_PLACES = [0, 4, 1, 5, 2, 6, 3, 7];

const repack = [false, true].flatMap((awq) =>
  [false, true].flatMap((hasOrder) =>
    sizes
      .filter(({ bits }) => !awq || bits === 4)
      .map((size) =>
        opCase({
          op: 'RepackCodes',
          dtype: 'i32',
          title: `${awq ? 'AWQ' : 'rows'}${hasOrder ? ' in another order' : ''}, ${titleOf(size)}`,
          build(random) {
            const { inputs, bits } = size;
            const outputs = awq ? 16 : size.outputs;
            const shape = awq ? [inputs, outputs / 8] : [outputs, wordsOf(size)];
            const count = (shape[0] as number) * (shape[1] as number);
            const order = Array.from({ length: inputs }, (_, k) => inputs - 1 - k);
            return {
              operands: {
                in: input('i32', shape, random.integers(count, -(2 ** 31), 2 ** 31)),
                order: hasOrder ? input('i32', [inputs], order) : null,
                out: output('i32', [outputs, wordsOf(size)], exact),
              },
              args: { inputs, bits, layout: awq ? 'awq' : 'rows' },
              reference: (v) => {
                const rows = Array.from({ length: awq ? 0 : outputs }, (_, row) =>
                  unpack(v.in!, row * wordsOf(size), size),
                );
                const codes = Array.from({ length: outputs * inputs }, (_, i) => {
                  const [row, at] = [floor(i / inputs), i % inputs];
                  const k = hasOrder ? order[at]! : at;
                  if (!awq) return rows[row]![k]!;
                  const word = v.in![k * (outputs / 8) + floor(row / 8)] as number;
                  return (word >>> (4 * (AWQ_PLACES[row % 8] as number))) & 15;
                });
                return { out: packCodes(codes, { ...size, outputs }) };
              },
            };
          },
        }),
      ),
  ),
);

export const cases: MatrixCase[] = [...quantize, ...dequantize, ...linear, ...repack];
