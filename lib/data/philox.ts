// Philox4x32-10 in JavaScript: the same words as csrc/core/philox.h, for orders that depend on a
// seed. Source: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3" (SC'11).

/** The upper 32 bits of a product of two unsigned 32-bit integers, by their halves. */
function highProduct(a: number, b: number): number {
  const [aLow, aHigh, bLow, bHigh] = [a & 0xffff, a >>> 16, b & 0xffff, b >>> 16];
  const first = aHigh * bLow + ((aLow * bLow) >>> 16);
  const second = aLow * bHigh + (first % 65536);
  return aHigh * bHigh + Math.floor(first / 65536) + Math.floor(second / 65536);
}

/**
 * The four words of block `counter` of stream (`seed`, `offset`); all three are safe integers >= 0.
 */
export function philox(
  seed: number,
  offset: number,
  counter: number,
): [number, number, number, number] {
  const high = (x: number): number => Math.floor(x / 2 ** 32) >>> 0;
  let [c0, c1, c2, c3] = [counter >>> 0, high(counter), offset >>> 0, high(offset)];
  let [k0, k1] = [seed >>> 0, high(seed)];
  for (let round = 0; round < 10; ++round) {
    const [low0, high0] = [Math.imul(0xd2511f53, c0) >>> 0, highProduct(0xd2511f53, c0)];
    const [low1, high1] = [Math.imul(0xcd9e8d57, c2) >>> 0, highProduct(0xcd9e8d57, c2)];
    c0 = (high1 ^ c1 ^ k0) >>> 0;
    c2 = (high0 ^ c3 ^ k1) >>> 0;
    c1 = low1;
    c3 = low0;
    k0 = (k0 + 0x9e3779b9) >>> 0;
    k1 = (k1 + 0xbb67ae85) >>> 0;
  }
  return [c0, c1, c2, c3];
}

/** Words of one stream, in order. */
export class PhiloxStream {
  private block: readonly number[] = [];
  private taken = 0;

  constructor(
    private readonly seed: number,
    private readonly offset: number,
  ) {}

  /** The next 32-bit word. */
  next(): number {
    const place = this.taken % 4;
    if (place === 0) this.block = philox(this.seed, this.offset, this.taken / 4);
    this.taken++;
    return this.block[place] as number;
  }

  /** A number in [0, 1), a multiple of 2^-53. */
  unit(): number {
    const high = this.next() >>> 5;
    return (high * 2 ** 26 + (this.next() >>> 6)) / 2 ** 53;
  }

  /** An integer in [0, n), every one equally likely; 1 <= n <= 2^32. */
  below(n: number): number {
    const limit = 2 ** 32 - (2 ** 32 % n);
    let word = this.next();
    while (word >= limit) word = this.next();
    return word % n;
  }
}
