// The random generator Philox4x32-10 in JavaScript, for orders of samples. It computes the same
// words as csrc/core/philox.h. Source: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3"
// (SC'11).
import { required } from '../runtime/required.js';

const ROUNDS = 10;
/** Multipliers of Philox, and their lower and upper halves. */
const [BY0, BY1] = [0xd2511f53, 0xcd9e8d57];
const [LOW0, HIGH0, LOW1, HIGH1] = [BY0 & 0xffff, BY0 >>> 16, BY1 & 0xffff, BY1 >>> 16];

/**
 * Returns the upper 32 bits of the product of two unsigned integers. The second is given by its
 * lower and upper half, because JavaScript has no exact product of 64 bits.
 */
function multiplyHigh(a: number, low: number, high: number): number {
  const [aLow, aHigh] = [a & 0xffff, a >>> 16];
  const [crossLow, crossHigh] = [Math.imul(aHigh, low), Math.imul(aLow, high)];
  const carry = (Math.imul(aLow, low) >>> 16) + (crossLow & 0xffff) + (crossHigh & 0xffff);
  return (Math.imul(aHigh, high) + (crossLow >>> 16) + (crossHigh >>> 16) + (carry >>> 16)) | 0;
}

const upperWord = (x: number): number => Math.floor(x / 2 ** 32) | 0;

/** The keys of the last seed. A program has few seeds and thousands of streams. */
let cachedKeys: { seed: number; keys: Int32Array } | null = null;

/** Returns the keys of all rounds for a seed, two per round. */
function deriveKeys(seed: number): Int32Array {
  if (cachedKeys?.seed === seed) return cachedKeys.keys;
  const keys = new Int32Array(2 * ROUNDS);
  let [k0, k1] = [seed | 0, upperWord(seed)];
  for (let round = 0; round < ROUNDS; ++round) {
    keys[2 * round] = k0;
    keys[2 * round + 1] = k1;
    k0 = (k0 + 0x9e3779b9) | 0;
    k1 = (k1 + 0xbb67ae85) | 0;
  }
  cachedKeys = { seed, keys };
  return keys;
}

/**
 * Writes the four words of block `counter` of stream `offset`. All arithmetic is in 32-bit
 * integers.
 */
function writeBlock(words: Uint32Array, keys: Int32Array, offset: number, counter: number): void {
  let c0 = counter | 0;
  let c1 = upperWord(counter);
  let c2 = offset | 0;
  let c3 = upperWord(offset);
  for (let at = 0; at < 2 * ROUNDS; at += 2) {
    const next0 = multiplyHigh(c2, LOW1, HIGH1) ^ c1 ^ required(keys[at]);
    const next2 = multiplyHigh(c0, LOW0, HIGH0) ^ c3 ^ required(keys[at + 1]);
    c1 = Math.imul(BY1, c2);
    c3 = Math.imul(BY0, c0);
    c0 = next0;
    c2 = next2;
  }
  words[0] = c0;
  words[1] = c1;
  words[2] = c2;
  words[3] = c3;
}

/**
 * Returns the four words of block `counter` of stream (`seed`, `offset`). All three are safe
 * integers of at least 0.
 */
export function philox(
  seed: number,
  offset: number,
  counter: number,
): [number, number, number, number] {
  const words = new Uint32Array(4);
  writeBlock(words, deriveKeys(seed), offset, counter);
  return [...words] as [number, number, number, number];
}

/** The words of one stream, in order. */
export class PhiloxStream {
  private readonly keys: Int32Array;
  private readonly block = new Uint32Array(4);
  private position = 4;
  private blocks = 0;

  constructor(
    seed: number,
    private readonly offset: number,
  ) {
    this.keys = deriveKeys(seed);
  }

  /** Returns the next 32-bit word. */
  next(): number {
    if (this.position === 4) {
      writeBlock(this.block, this.keys, this.offset, this.blocks++);
      this.position = 0;
    }
    return required(this.block[this.position++]);
  }

  /** Returns a random number of at least 0 and less than 1, a multiple of 2^-53. */
  unit(): number {
    const high = this.next() >>> 5;
    return (high * 2 ** 26 + (this.next() >>> 6)) / 2 ** 53;
  }

  /** Returns a uniform random integer from 0 to n - 1. n is 1 to 2^32. */
  below(n: number): number {
    let word = this.next();
    if (n === 2 ** 32) return word;
    // The first condition is cheap and nearly always false; only the second one needs a division.
    while (word >= 2 ** 32 - n && word >= 2 ** 32 - (2 ** 32 % n)) word = this.next();
    return (word >>> 0) % (n >>> 0);
  }
}
