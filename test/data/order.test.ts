// The generator against published vectors, and epoch orders as permutations that only seed and
// epoch decide.
import { naturalOrder, shuffledOrder } from '../../lib/data/order.js';
import { PhiloxStream, philox } from '../../lib/data/philox.js';

/** Known answers of Random123's kat_vectors for philox4x32-10. */
test('Philox gives the published words', () => {
  expect(philox(0, 0, 0)).toEqual([0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]);
});

test('Philox agrees with a direct transcription in wide integers', () => {
  const reference = (seed: bigint, offset: bigint, counter: bigint): number[] => {
    const mask = 0xffffffffn;
    let [c0, c1, c2, c3] = [counter & mask, counter >> 32n, offset & mask, offset >> 32n];
    let [k0, k1] = [seed & mask, seed >> 32n];
    for (let round = 0; round < 10; ++round) {
      const [p0, p1] = [0xd2511f53n * c0, 0xcd9e8d57n * c2];
      [c0, c1, c2, c3] = [(p1 >> 32n) ^ c1 ^ k0, p1 & mask, (p0 >> 32n) ^ c3 ^ k1, p0 & mask];
      [k0, k1] = [(k0 + 0x9e3779b9n) & mask, (k1 + 0xbb67ae85n) & mask];
    }
    return [c0, c1, c2, c3].map(Number);
  };
  for (let i = 0; i < 500; ++i) {
    const [seed, offset, counter] = [i * 7919 + 2 ** 40 * (i % 5), i * i, i * 2 ** 33 + i];
    const expected = reference(BigInt(seed), BigInt(offset), BigInt(counter));
    expect(philox(seed, offset, counter)).toEqual(expected);
  }
});

test('below() returns the recorded numbers, for limits up to 2^32', () => {
  const random = new PhiloxStream(9, 2 ** 33 + 1);
  const bounds = [3, 2 ** 31 + 1, 2 ** 32, 2 ** 32 - 1, 2 ** 31 + 1, 17];
  expect(bounds.map((bound) => random.below(bound))).toEqual([
    1, 462474247, 3997028592, 3219760034, 1963610226, 8,
  ]);
});

test('below() is even', () => {
  const random = new PhiloxStream(1, 2);
  const counts = new Array<number>(6).fill(0);
  for (let i = 0; i < 60_000; ++i) {
    const value = random.below(6);
    counts[value] = (counts[value] as number) + 1;
  }
  for (const count of counts) expect(Math.abs(count - 10_000)).toBeLessThan(400);
});

test('an order is a permutation, the same for the same seed and epoch, another for others', () => {
  const order = shuffledOrder(1000, 5, 3);
  expect([...order].sort((a, b) => a - b)).toEqual([...naturalOrder(1000)]);
  expect(shuffledOrder(1000, 5, 3)).toEqual(order);
  expect(shuffledOrder(1000, 5, 4)).not.toEqual(order);
  expect(shuffledOrder(1000, 6, 3)).not.toEqual(order);
  expect(shuffledOrder(1, 0, 0)).toEqual(Uint32Array.of(0));
  expect(shuffledOrder(0, 0, 0)).toEqual(new Uint32Array(0));
});

test('every permutation of three is equally likely', () => {
  const counts = new Map<string, number>();
  for (let epoch = 0; epoch < 6000; ++epoch) {
    const key = shuffledOrder(3, 9, epoch).join('');
    counts.set(key, (counts.get(key) ?? 0) + 1);
  }
  expect(counts.size).toBe(6);
  for (const count of counts.values()) expect(Math.abs(count - 1000)).toBeLessThan(150);
});
