// Powers rounded to the nearest double, as in C libraries. V8's pow is off by one bit in one of ten
// results, which changes a difficulty that is rounded down.

/** Fraction bits of the fixed-point numbers below. */
const FRACTION_BITS = 128n;
const ONE = 1n << FRACTION_BITS;

/** base^exponent for a positive base and exponent: the nearest double. */
export function accuratePower(base: number, exponent: number): number {
  if (exponent === 1 || base === 1) return base;
  const near = base ** exponent;
  const wanted = (fixed(exponent) * logarithm(fixed(base))) >> FRACTION_BITS;
  const off = Number(wanted - logarithm(fixed(near))) / Number(ONE);
  return near + near * off;
}

/** Exact for multiples of 2^-128. */
function fixed(value: number): bigint {
  let [scaled, bits] = [value, 0n];
  while (!Number.isInteger(scaled) && bits < FRACTION_BITS) {
    scaled *= 2;
    bits++;
  }
  return BigInt(Math.trunc(scaled)) << (FRACTION_BITS - bits);
}

const LOG_2 = seriesOf(2n * ONE);

/** The natural logarithm of a positive fixed-point number. */
function logarithm(value: bigint): bigint {
  let [mantissa, doublings] = [value, 0n];
  while (mantissa < ONE) {
    mantissa <<= 1n;
    doublings--;
  }
  while (mantissa >= 2n * ONE) {
    mantissa >>= 1n;
    doublings++;
  }
  return seriesOf(mantissa) + doublings * LOG_2;
}

/** The same from 1 to 2, where ln m = 2 atanh((m - 1) / (m + 1)) gains three bits a term. */
function seriesOf(mantissa: bigint): bigint {
  const ratio = ((mantissa - ONE) << FRACTION_BITS) / (mantissa + ONE);
  const square = (ratio * ratio) >> FRACTION_BITS;
  let sum = 0n;
  let power = ratio;
  for (let odd = 1n; power > 0n; odd += 2n) {
    sum += power / odd;
    power = (power * square) >> FRACTION_BITS;
  }
  return 2n * sum;
}
