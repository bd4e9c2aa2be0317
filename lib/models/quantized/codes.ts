// Converts codes, zero points and input orders between the layouts of files and QuantizedLinear.

import { DsError } from '../../errors.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { leading, required } from '../../runtime/required.js';
import { Tensor } from '../../tensor/index.js';
import type { FolderScheme } from './scheme.js';

/** Sizes of the layer that the codes belong to. */
interface CodeSizes {
  /** [outputs, inputs]. */
  shape: readonly [number, number];
  bits: 8 | 4;
  /** The input at each position, [inputs]; null for the order of the files. */
  order: Int32Array | null;
}

/**
 * Words of a file as [outputs, ceil(inputs bits / 32)], with `order` applied. Source: inference by
 * AutoGPTQ (low bits first along the inputs), AutoAWQ's gemm, compressed-tensors' pack-quantized.
 */
export function convertCodes(
  words: Tensor,
  method: FolderScheme['method'],
  { shape, bits, order }: CodeSizes,
): Tensor {
  const [outputs, inputs] = shape;
  const rows = method === 'gptq' ? words.transpose(0, 1).contiguous() : words;
  if (method !== 'awq' && !order) return rows === words ? words.clone() : rows;
  const out = Tensor.empty([outputs, Math.ceil((inputs * bits) / 32)], 'i32', words.device);
  const from = order && Tensor.from(order, { device: words.device });
  const layout = method === 'awq' ? 'awq' : 'rows';
  kernels.repackCodes({ in: rows, order: from, out, inputs, bits, layout });
  return out;
}

/** Bit position of output `j` of eight in a word of AWQ. */
const AWQ_PLACES = [0, 4, 1, 5, 2, 6, 3, 7] as const;

/**
 * Zero points as [outputs, groups], a byte each; null if all are the middle code, the default.
 * GPTQ's first format stores them minus one, in the same number of bits.
 */
export function convertZeros(
  words: Tensor,
  { method, zeroOffset }: FolderScheme,
  bits: 8 | 4,
  outputs: number,
): { values: Uint8Array; shape: [number, number] } | null {
  const stored = words.toRaw() as Int32Array;
  const [perWord, mask] = [32 / bits, 2 ** bits - 1];
  const isDown = method === 'compressed-tensors';
  const groups = words.size(isDown ? 1 : 0);
  const width = words.size(1);
  const values = new Uint8Array(outputs * groups);
  for (let n = 0; n < outputs; ++n) {
    const [word, place] = [Math.floor(n / perWord), n % perWord];
    const shift = bits * (method === 'awq' ? (AWQ_PLACES[place] as number) : place);
    for (let g = 0; g < groups; ++g) {
      const at = isDown ? word * width + g : g * width + word;
      values[n * groups + g] = ((required(stored[at]) >>> shift) + zeroOffset) & mask;
    }
  }
  const middle = 2 ** (bits - 1);
  return values.every((value) => value === middle) ? null : { values, shape: [outputs, groups] };
}

/** Zero points in the words of compressed-tensors, [ceil(outputs bits / 32), groups]. */
export function packZeros(zeros: Tensor, bits: 8 | 4): Int32Array {
  const [outputs, groups] = leading(zeros.shape, 2);
  const bytes = zeros.toRaw() as Uint8Array;
  const perWord = 32 / bits;
  const words = new Int32Array(Math.ceil(outputs / perWord) * groups);
  bytes.forEach((value, i) => {
    const [n, g] = [Math.floor(i / groups), i % groups];
    const at = Math.floor(n / perWord) * groups + g;
    words[at] = required(words[at]) | (value << (bits * (n % perWord)));
  });
  return words;
}

/**
 * Returns the inputs in the order of their groups, or null if that is their own order, from the
 * group of each input. Throws DS_CHECKPOINT for groups of other sizes than `groupSize`.
 */
export function inputOrder(op: string, index: Tensor, groupSize: number | null): Int32Array | null {
  const groupOf = index.toRaw() as Int32Array;
  const inputs = groupOf.length;
  const size = groupSize ?? Math.max(1, inputs);
  if (groupOf.every((group, k) => group === Math.floor(k / size))) return null;
  const order = Int32Array.from(groupOf.keys()).sort(
    (a, b) => required(groupOf[a]) - required(groupOf[b]) || a - b,
  );
  const isWhole = order.every((k, place) => groupOf[k] === Math.floor(place / size));
  if (isWhole) return order;
  throw new DsError({
    code: 'DS_CHECKPOINT',
    op,
    expected: `groups of ${size} inputs, numbered from 0`,
    got: 'groups of other sizes',
    hint: 'Activation order (desc_act) may reorder inputs, but each group must have group_size inputs.',
  });
}

/** Returns the group of each input, from the input of each position. */
export function groupIndices(order: Tensor, groupSize: number | null): Int32Array {
  const inputs = order.toRaw() as Int32Array;
  const index = new Int32Array(inputs.length);
  const size = groupSize ?? Math.max(1, inputs.length);
  inputs.forEach((input, place) => {
    index[input] = Math.floor(place / size);
  });
  return index;
}
