// Philox 4x32-10 in plain integers, the reference of the library's random ops.

const { floor, imul } = Math;
const WORD = 2 ** 32;

/** The upper 32 bits of the product. */
function upper(a: number, b: number): number {
  const [high, low] = [a >>> 16, a & 0xffff];
  const below = low * (b & 0xffff);
  const middle = high * (b & 0xffff) + floor(below / 0x10000);
  const other = low * (b >>> 16) + (middle % 0x10000);
  return high * (b >>> 16) + floor(middle / 0x10000) + floor(other / 0x10000);
}

/** The four words of block `counter` of the stream (seed, offset): Salmon et al. 2011. */
export function philox(seed: number, offset: number, counter: number): number[] {
  let [c0, c1] = [counter >>> 0, floor(counter / WORD) >>> 0];
  let [c2, c3] = [offset >>> 0, floor(offset / WORD) >>> 0];
  let [k0, k1] = [seed >>> 0, floor(seed / WORD) >>> 0];
  for (let round = 0; round < 10; ++round) {
    const [low0, low1] = [imul(0xd2511f53, c0) >>> 0, imul(0xcd9e8d57, c2) >>> 0];
    const [high0, high1] = [upper(0xd2511f53, c0), upper(0xcd9e8d57, c2)];
    c0 = (high1 ^ c1 ^ k0) >>> 0;
    c1 = low1;
    c2 = (high0 ^ c3 ^ k1) >>> 0;
    c3 = low0;
    k0 = (k0 + 0x9e3779b9) >>> 0;
    k1 = (k1 + 0xbb67ae85) >>> 0;
  }
  return [c0, c1, c2, c3];
}
