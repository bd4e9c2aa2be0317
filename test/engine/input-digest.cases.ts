// Tests that the digest of a batch is the weighted sum of its bytes on every device. A different
// value, shape, order or dtype changes it.
import assert from 'node:assert/strict';
import { DigestWeights, InputDigest } from '../../lib/engine/step/copy-check.js';
import { arange, type DType, Tensor } from '../../lib/index.js';
import type { Device } from '../../lib/runtime/device.js';
import { held, scope, zeros } from '../../lib/tensor/index.js';
import type { Case } from '../support/case.js';

/** The contents of the outputs after each list of values. */
function digests(device: Device, ...lists: readonly unknown[][]): [number, number][] {
  const weights = new DigestWeights(device);
  const [bits, outline] = [0, 1].map(() => held(() => zeros([1], { device }))) as [Tensor, Tensor];
  const digest = new InputDigest({ bits, outline }, weights);
  const found = lists.map((values): [number, number] => {
    for (const value of values) digest.add(value);
    digest.report();
    const raw = bits.toRaw();
    const [sum = 0] = new Int32Array(raw.buffer, raw.byteOffset, 1);
    return [sum, outline.item()];
  });
  for (const tensor of [bits, outline]) tensor.release();
  weights.dispose();
  return found;
}

/** The same sum for one tensor in JavaScript. */
function sumOf(tensor: Tensor): number {
  const raw = tensor.toRaw();
  const bytes = new Uint8Array(raw.buffer, raw.byteOffset, raw.byteLength);
  let state = 0x9e3779b9;
  return bytes.reduce((sum, byte) => {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    return (sum + Math.imul(byte, (state >>> 9) | 1)) | 0;
  }, 0);
}

const DTYPES: readonly DType[] = ['f32', 'bf16', 'f16', 'f64', 'i32', 'i64', 'u8', 'bool'];

function sums(device: Device): void {
  scope(() => {
    for (const dtype of DTYPES) {
      if (dtype === 'f64' && device.kind !== 'cpu') continue; // f64 exists on the CPU only.
      const values = arange(35, { device }).to(dtype).reshape([5, 7]);
      const [[whole, outline] = [], [turned] = [], ...rest] = digests(
        device,
        [values],
        [values.transpose(0, 1)],
        [values.transpose(0, 1).contiguous()],
      );
      assert.equal(whole, sumOf(values), dtype);
      assert.ok(outline && outline > 0, dtype);
      assert.equal(turned, rest[0]?.[0], dtype);
      // The only false stays the first element.
      if (dtype !== 'bool') assert.notEqual(turned, whole, dtype);
    }
  });
}

/** Longer than one chunk: two bytes at a distance of one chunk have different weights. */
function chunks(device: Device): void {
  scope(() => {
    const n = 2 ** 20 + 5;
    const one = (at: number): Tensor => {
      const values = new Uint8Array(n);
      values[at] = 7;
      return Tensor.from(values, { device });
    };
    const found = digests(device, ...[0, 2 ** 20, n - 1, 5].map((at) => [one(at)]));
    assert.equal(new Set(found.map(([sum]) => sum)).size, 4);
    assert.equal(new Set(found.map(([, outline]) => outline)).size, 1);
  });
}

function differences(device: Device): void {
  scope(() => {
    const of = (values: number[], shape = [values.length]) =>
      Tensor.from(Int32Array.from(values), { shape, device });
    const [a, b] = [of([1, 2, 3, 4]), of([4, 3, 2, 1])];
    const same = [[[a, b]], [[a], [b]], [{ tokens: a, targets: b }]];
    const other = [[[b, a]], [[of([1, 2, 3, 4], [2, 2]), b]], [[a]], [[a, b, of([])]]];
    const found = digests(device, ...same, ...other, [], [1, null, 'text']).map(String);
    assert.equal(new Set(found.slice(0, same.length)).size, 1, found.join(' '));
    assert.equal(new Set(found.slice(0, same.length + other.length)).size, 1 + other.length);
    assert.deepEqual(found.slice(-2), ['0,0', '0,0']);
  });
}

/** Tensors in host memory are compared too if the device is a GPU. */
function onHost(device: Device): void {
  scope(() => {
    const of = (value: number) => Tensor.from(Int32Array.of(1, value), { device: 'cpu' });
    const [first, second, third] = digests(device, [of(2)], [of(2)], [of(3)]).map(String);
    assert.equal(first, second);
    assert.notEqual(first, third);
  });
}

/** The weights are made once, also for exactly as many bytes as there are weights. */
function weightsOnce(device: Device): void {
  const weights = new DigestWeights(device);
  const { buffer } = weights.view(0, 1024);
  assert.equal(weights.view(4095, 1024).buffer, buffer);
  assert.equal(weights.view(0, 5).buffer, buffer);
  assert.notEqual(weights.view(0, 1025).buffer, buffer);
  weights.dispose();
}

/** An outline is exact in f32, and 0 stands for no tensor. */
function outlines(device: Device): void {
  scope(() => {
    const lists = Array.from({ length: 40 }, (_, i) => [zeros([i], { device })]);
    const found = digests(device, ...lists).map(([, outline]) => outline);
    assert.ok(found.every((value) => Number.isInteger(value) && value > 0 && value < 2 ** 24));
    assert.equal(new Set(found).size, 40);
  });
}

export const cases: readonly Case[] = [
  { name: 'the weights of digests are made once', run: weightsOnce },
  { name: 'the outline of a batch is a positive integer that f32 represents', run: outlines },
  { name: 'the digest of a batch is the weighted sum of its bytes', run: sums },
  { name: 'the digest of a batch that is longer than a chunk', run: chunks },
  { name: 'the digest of a batch by values, shapes and order', run: differences },
  { name: 'the digest of a batch in host memory', run: onHost },
];
