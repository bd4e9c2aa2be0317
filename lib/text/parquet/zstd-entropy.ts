// Entropy decoders of Zstandard (RFC 8878): finite state entropy and Huffman codes.
import { required } from '../../runtime/required.js';

export const fail = (what: string): never => {
  throw new Error(`zstd: ${what}`);
};

/** Decoding table of finite state entropy. */
export interface Fse {
  log: number;
  symbols: Uint8Array;
  bits: Uint8Array;
  base: Uint16Array;
}

export interface Huffman {
  log: number;
  symbols: Uint8Array;
  bits: Uint8Array;
}

/** Reads bits from the last to the first, as entropy streams are stored. */
export class BackwardBits {
  /** Number of unread bits; negative after reads beyond the first bit, which return zeros. */
  left: number;

  constructor(
    private readonly bytes: Uint8Array,
    private readonly from: number,
    to: number,
  ) {
    const last = to > from ? required(bytes[to - 1]) : 0;
    if (last === 0) fail('a stream without an end mark');
    this.left = (to - from) * 8 - 1 - Math.clz32(last << 24);
  }

  read(count: number): number {
    if (count > 24) return this.read(count - 16) * 65536 + this.read(16);
    this.left -= count;
    return this.peek(this.left, count);
  }

  /** Returns `count` bits, at most 24, from bit `at` on. */
  peek(at: number, count: number): number {
    if (at < 0) return at + count <= 0 ? 0 : this.peek(0, at + count) << -at;
    const { bytes } = this;
    const i = this.from + (at >> 3);
    const word =
      required(bytes[i]) |
      (required(bytes[i + 1]) << 8) |
      (required(bytes[i + 2]) << 16) |
      (required(bytes[i + 3]) << 24);
    return (word >>> (at & 7)) & ((1 << count) - 1);
  }
}

const log2 = (value: number): number => 31 - Math.clz32(value);

/**
 * Builds the decoding table of symbol probabilities, in units of 2^-log; -1 means less than one
 * unit.
 */
export function buildFse(probabilities: readonly number[], log: number): Fse {
  const size = 1 << log;
  const symbols = new Uint8Array(size);
  const next = new Uint16Array(probabilities.length);
  let high = size;
  probabilities.forEach((count, symbol) => {
    next[symbol] = Math.abs(count);
    if (count === -1) symbols[--high] = symbol;
  });
  const step = (size >> 1) + (size >> 3) + 3;
  let at = 0;
  probabilities.forEach((count, symbol) => {
    for (let i = 0; i < count; ++i) {
      symbols[at] = symbol;
      do at = (at + step) & (size - 1);
      while (at >= high);
    }
  });
  if (at !== 0) fail('probabilities that do not fill their table');
  const bits = new Uint8Array(size);
  const base = new Uint16Array(size);
  for (let i = 0; i < size; ++i) {
    const symbol = required(symbols[i]);
    const state = required(next[symbol]);
    next[symbol] = state + 1;
    bits[i] = log - log2(state);
    base[i] = (state << required(bits[i])) - size;
  }
  return { log, symbols, bits, base };
}

/**
 * Reads a table's probabilities from byte `at` on. Returns the table and the position after them.
 */
export function readFse(
  bytes: Uint8Array,
  at: number,
  end: number,
  largest: number,
  count: number,
): [Fse, number] {
  let bit = at * 8;
  const read = (n: number): number => {
    const i = bit >> 3;
    const word =
      required(bytes[i]) | (required(bytes[i + 1]) << 8) | (required(bytes[i + 2]) << 16);
    const value = (word >>> (bit & 7)) & ((1 << n) - 1);
    bit += n;
    if (bit > end * 8) fail('a table that exceeds its block');
    return value;
  };
  const log = read(4) + 5;
  if (log > largest) fail(`a table of 2^${log} states`);
  const probabilities: number[] = [];
  for (let remaining = 1 << log; remaining > 0; ) {
    const n = log2(remaining + 1) + 1;
    const low = (1 << (n - 1)) - 1;
    const threshold = (1 << n) - 2 - remaining;
    let value = read(n);
    if ((value & low) < threshold) {
      bit -= 1;
      value &= low;
    } else if (value > low) {
      value -= threshold;
    }
    const probability = value - 1;
    remaining -= Math.abs(probability);
    if (remaining < 0) fail('probabilities above one');
    probabilities.push(probability);
    if (probability === 0) {
      let zeros: number;
      do {
        zeros = read(2);
        for (let i = 0; i < zeros; ++i) probabilities.push(0);
      } while (zeros === 3 && probabilities.length <= count);
    }
    if (probabilities.length > count) fail(`more than ${count} symbols`);
  }
  return [buildFse(probabilities, log), (bit + 7) >> 3];
}

/**
 * Reads the weights of a Huffman code from byte `from` on. Returns its table and the position after
 * the weights.
 */
export function readHuffman(bytes: Uint8Array, from: number, end: number): [Huffman, number] {
  const first = bytes[from] ?? 0;
  let at = from + 1;
  const weights: number[] = [];
  if (first >= 128) {
    const count = first - 127;
    const stop = at + ((count + 1) >> 1);
    if (stop > end) fail('Huffman weights that exceed their block');
    for (let i = 0; i < count; ++i) {
      const pair = required(bytes[at + (i >> 1)]);
      weights.push(i & 1 ? pair & 15 : pair >> 4);
    }
    at = stop;
  } else {
    const stop = at + first;
    if (stop > end) fail('Huffman weights that exceed their block');
    const [table, streamAt] = readFse(bytes, at, stop, 6, 13);
    const stream = new BackwardBits(bytes, streamAt, stop);
    const states = [stream.read(table.log), stream.read(table.log)];
    if (stream.left < 0) fail('Huffman weights that end early');
    for (let turn = 0; ; turn ^= 1) {
      const state = required(states[turn]);
      weights.push(required(table.symbols[state]));
      states[turn] = required(table.base[state]) + stream.read(required(table.bits[state]));
      if (stream.left < 0) {
        weights.push(required(table.symbols[required(states[turn ^ 1])]));
        break;
      }
      if (weights.length > 254) fail('more than 255 Huffman weights');
    }
    at = stop;
  }
  const sum = weights.reduce((total, weight) => total + (weight > 0 ? 1 << (weight - 1) : 0), 0);
  const log = sum > 0 ? log2(sum) + 1 : 0;
  const left = (1 << log) - sum;
  if (log < 1 || log > 11 || (left & (left - 1)) !== 0) fail('Huffman weights without a code');
  weights.push(log2(left) + 1);
  const symbols = new Uint8Array(1 << log);
  const bits = new Uint8Array(1 << log);
  let position = 0;
  for (let weight = 1; weight <= log; ++weight) {
    weights.forEach((symbolWeight, symbol) => {
      if (symbolWeight !== weight) return;
      const stop = position + (1 << (weight - 1));
      symbols.fill(symbol, position, stop);
      bits.fill(log + 1 - weight, position, stop);
      position = stop;
    });
  }
  if (position !== 1 << log) fail('Huffman weights without a code');
  return [{ log, symbols, bits }, at];
}

/** Decodes bytes [from, to) of a Huffman stream, which must fill `output` exactly. */
export function decodeHuffmanStream(
  bytes: Uint8Array,
  from: number,
  to: number,
  { log, symbols, bits }: Huffman,
  output: Uint8Array,
): void {
  const stream = new BackwardBits(bytes, from, to);
  let { left } = stream;
  for (let i = 0; i < output.length; ++i) {
    const entry = stream.peek(left - log, log);
    output[i] = required(symbols[entry]);
    left -= required(bits[entry]);
  }
  if (left !== 0) fail('literals that do not fill their stream');
}
