// Tests the copies of an asynchronous save: later changes do not reach them, and one block of
// memory holds them, which grows and is used again.
import { HostCopy } from '../../lib/engine/saving/host-copy.js';
import { cpu } from '../../lib/runtime/device.js';
import { held, noGrad, Tensor } from '../../lib/tensor/index.js';

const tensorOf = (count: number, dtype: 'f32' | 'f64' | 'u8' = 'f32'): Tensor =>
  held(() =>
    Tensor.from(
      Array.from({ length: count }, (_, i) => i + 1),
      { dtype },
    ),
  );

const shardsOf = (tensors: readonly Tensor[]) =>
  tensors.map((tensor, i) => ({ name: `t${i}`, shape: tensor.shape, tensor }));

/** Takes copies, changes the tensors, and returns the values of the copies. */
function copyAll(copy: HostCopy, tensors: readonly Tensor[]) {
  const copies = copy.take(shardsOf(tensors));
  copy.wait();
  for (const tensor of tensors) noGrad(() => tensor.fill_(0));
  const values = copies.map(({ tensor }) => tensor.toArray());
  const [buffer] = copies.map(({ tensor }) => tensor.buffer);
  const places = copies.map(({ tensor }) => [
    tensor.buffer === buffer,
    (tensor.offset * (tensor.bytes / Math.max(1, tensor.numel))) % 64,
  ]);
  for (const { tensor } of copies) tensor.release();
  return { values, places, buffer };
}

const countTo = (count: number): number[] => Array.from({ length: count }, (_, i) => i + 1);

test('copies have the values before a change, each aligned in one block', () => {
  const copy = new HostCopy(cpu());
  const tensors = [tensorOf(3), tensorOf(100), tensorOf(5, 'u8'), tensorOf(17, 'f64')];
  const { values, places } = copyAll(copy, tensors);
  expect(values).toEqual([3, 100, 5, 17].map(countTo));
  expect(places).toEqual(tensors.map(() => [true, 0]));
  for (const tensor of tensors) tensor.release();
  copy.dispose();
});

test('the block is reused, and replaced by a larger one', () => {
  const copy = new HostCopy(cpu());
  const [small, large] = [tensorOf(40), tensorOf(400)];
  const { buffer } = copyAll(copy, [small]);
  expect(copyAll(copy, [small]).buffer).toBe(buffer);
  const next = copyAll(copy, [large]);
  expect(next.buffer).not.toBe(buffer);
  expect(buffer?.isReleased).toBe(true);
  expect(copyAll(copy, [small]).buffer).toBe(next.buffer);
  copy.dispose();
  expect(next.buffer?.isReleased).toBe(true);
  for (const tensor of [small, large]) tensor.release();
});

test('an empty copy allocates nothing, and can be disposed twice', () => {
  const copy = new HostCopy(cpu());
  const empty = tensorOf(0);
  expect(copyAll(copy, [empty]).values).toEqual([[]]);
  expect(copy.take([])).toEqual([]);
  copy.dispose();
  empty.release();
});

/** More than one part of a remote tensor. */
const COUNT = 2 ** 22 + 2 ** 16;

test('state outside host memory is copied part by part, in flat order', () => {
  const values = new Float32Array(COUNT).map((_, i) => i);
  const fullTensor = held(() => Tensor.from(values));
  const borrowed: number[][] = [];
  let waits = 0;
  const remote = {
    dtype: 'f32',
    numel: fullTensor.numel,
    bytes: fullTensor.bytes,
    grain: 64,
    borrow(first: number, numel: number) {
      borrowed.push([first, numel]);
      const tensor = held(() => fullTensor.alias([numel], [1], first));
      return { tensor, wait: () => void waits++ };
    },
  };
  const copy = new HostCopy(cpu());
  const copies = copy.take([{ name: 'far', shape: [2, COUNT / 2], tensor: remote as never }]);
  copy.wait();
  expect(copies[0]?.shape).toEqual([2, COUNT / 2]);
  expect(copies[0]?.tensor.shape).toEqual([COUNT]);
  const found = copies[0]?.tensor.toRaw() as Float32Array;
  expect(found.findIndex((value, i) => value !== i)).toBe(-1);
  expect(borrowed.length).toBeGreaterThan(1);
  expect(waits).toBe(borrowed.length);
  expect(borrowed.reduce((sum, [, numel]) => sum + (numel as number), 0)).toBe(COUNT);
  copies[0]?.tensor.release();
  copy.dispose();
  fullTensor.release();
});
