// Philox 4x32-10 in plain integers, what the library's random ops are held to.

const MASK = 0xffffffffn;

/** The four words of block `counter` of the stream (seed, offset): Salmon et al. 2011. */
export function philox(seed: number, offset: number, counter: number): number[] {
  let [c0, c1] = [BigInt(counter) & MASK, BigInt(counter) >> 32n];
  let [c2, c3] = [BigInt(offset) & MASK, BigInt(offset) >> 32n];
  let [k0, k1] = [BigInt(seed) & MASK, BigInt(seed) >> 32n];
  for (let round = 0; round < 10; ++round) {
    const p0 = 0xd2511f53n * c0;
    const p1 = 0xcd9e8d57n * c2;
    [c0, c1, c2, c3] = [(p1 >> 32n) ^ c1 ^ k0, p1 & MASK, (p0 >> 32n) ^ c3 ^ k1, p0 & MASK];
    k0 = (k0 + 0x9e3779b9n) & MASK;
    k1 = (k1 + 0xbb67ae85n) & MASK;
  }
  return [c0, c1, c2, c3].map(Number);
}
