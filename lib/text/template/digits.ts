// Formats digits of floats with CPython's rounding: exact halves go to the even digit.

/** Decomposes a float: value = ±mantissa * 2^exponent. */
function decomposeFloat(value: number): { mantissa: bigint; exponent: number } {
  const view = new DataView(new ArrayBuffer(8));
  view.setFloat64(0, Math.abs(value));
  const bits = view.getBigUint64(0);
  const power = Number(bits >> 52n);
  const fraction = bits & (2n ** 52n - 1n);
  if (power === 0) return { mantissa: fraction, exponent: -1074 };
  return { mantissa: fraction | (2n ** 52n), exponent: power - 1075 };
}

/** Returns |value| * 10^decimals, rounded to an integer. */
function scaleToInteger(value: number, decimals: number): bigint {
  const { mantissa, exponent } = decomposeFloat(value);
  let [top, bottom] = [mantissa, 1n];
  if (exponent >= 0) top <<= BigInt(exponent);
  else bottom <<= BigInt(-exponent);
  if (decimals >= 0) top *= 10n ** BigInt(decimals);
  else bottom *= 10n ** BigInt(-decimals);
  const whole = top / bottom;
  const twice = (top % bottom) * 2n;
  return twice > bottom || (twice === bottom && whole % 2n === 1n) ? whole + 1n : whole;
}

/** Returns |value| as Python's "%.<decimals>f". */
export function formatFixed(value: number, decimals: number): string {
  const digits = String(scaleToInteger(value, decimals)).padStart(decimals + 1, '0');
  if (decimals === 0) return digits;
  return `${digits.slice(0, -decimals)}.${digits.slice(-decimals)}`;
}

/** Returns `count` significant digits of |value|, and the power of ten of the first digit. */
function significantDigits(value: number, count: number): { digits: string; power: number } {
  if (value === 0) return { digits: '0'.repeat(count), power: 0 };
  let power = Math.floor(Math.log10(Math.abs(value)));
  // The logarithm may be off by one, and rounding may carry.
  for (const shift of [-1, 0, 1, 2]) {
    const digits = String(scaleToInteger(value, count - 1 - (power + shift)));
    if (digits.length === count) return { digits, power: power + shift };
  }
  power += 3;
  return { digits: String(scaleToInteger(value, count - 1 - power)), power };
}

const formatExponent = (power: number): string =>
  `e${power < 0 ? '-' : '+'}${String(Math.abs(power)).padStart(2, '0')}`;

/** Returns |value| as Python's "%.<decimals>e". */
export function formatExponential(value: number, decimals: number): string {
  const { digits, power } = significantDigits(value, decimals + 1);
  const point = decimals > 0 ? `.${digits.slice(1)}` : '';
  return `${digits[0]}${point}${formatExponent(power)}`;
}

/**
 * Returns |value| as Python's "%.<precision>g". `keepsZeros` is its flag "#". With `hasPoint`, as
 * in format() without a type, a number with one digit less gets an exponent already.
 */
export function formatGeneral(
  value: number,
  precision: number,
  keepsZeros: boolean,
  hasPoint = false,
): string {
  const count = Math.max(1, precision);
  const { digits, power } = significantDigits(value, count);
  const trimZeros = (text: string): string =>
    keepsZeros || !text.includes('.') ? text : text.replace(/\.?0+$/, '');
  if (power < -4 || power >= (hasPoint ? count - 1 : count)) {
    const point = count > 1 ? `.${digits.slice(1)}` : keepsZeros ? '.' : '';
    return trimZeros(`${digits[0]}${point}`) + formatExponent(power);
  }
  const decimals = Math.max(0, count - 1 - power);
  const text =
    power < 0 ? `0.${'0'.repeat(-power - 1)}${digits}` : insertPoint(digits, power, decimals);
  const digitsText = trimZeros(keepsZeros && decimals === 0 ? `${text}.` : text);
  return hasPoint && !digitsText.includes('.') ? `${digitsText}.0` : digitsText;
}

const insertPoint = (digits: string, power: number, decimals: number): string =>
  decimals === 0 ? digits : `${digits.slice(0, power + 1)}.${digits.slice(power + 1)}`;

/** Returns Python's round(value, decimals). */
export function roundFloat(value: number, decimals: number): number {
  if (!Number.isFinite(value) || value === 0 || decimals > 323) return value;
  if (decimals < -308) return value < 0 ? -0 : 0;
  const digits = scaleToInteger(value, decimals);
  const size =
    decimals > 0 ? Number(`${digits}e-${decimals}`) : Number(digits * 10n ** BigInt(-decimals));
  return value < 0 ? -size : size;
}
