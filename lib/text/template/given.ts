// Converts variables of a program to Python values, as json.loads() reads JSON.
import { formatValue } from '../../runtime/format-value.js';
import { TemplateFault } from './fault.js';
import { Dict, Float, normalized, type Value } from './values.js';

/** Values within each other. */
const DEPTH = 500;

/** Throws TemplateFault for values that JSON has no form of. */
export function given(variables: Readonly<Record<string, unknown>>): Map<string, Value> {
  const values = new Map<string, Value>();
  for (const [name, variable] of Object.entries(variables)) {
    if (variable !== undefined) values.set(name, toValue(variable, 0));
  }
  return values;
}

function toValue(given: unknown, depth: number): Value {
  switch (typeof given) {
    case 'string':
    case 'boolean':
      return given;
    case 'number':
      return numberOf(given);
    case 'bigint':
      return normalized(given);
    case 'undefined':
      return null;
    case 'object':
      break;
    default:
      throw new TemplateFault('TypeError', `variables of JSON, not ${formatValue(given)}`);
  }
  if (given === null) return null;
  if (depth > DEPTH)
    throw new TemplateFault('RecursionError', `more than ${DEPTH} values within each other`);
  if (Array.isArray(given)) return given.map((item) => toValue(item, depth + 1));
  if (ArrayBuffer.isView(given)) return Array.from(given as Uint8Array, (item) => toValue(item, 0));
  if (given instanceof Date) return given.toISOString();
  const dict = new Dict();
  const entries = given instanceof Map ? given : Object.entries(given);
  for (const [key, item] of entries) {
    if (item !== undefined) dict.set(toValue(key, depth + 1), toValue(item, depth + 1));
  }
  return dict;
}

/** JSON's numbers without a point are integers, which JavaScript no longer shows above 2^53. */
function numberOf(number: number): Value {
  if (Number.isSafeInteger(number)) return number + 0;
  const isWhole = Number.isInteger(number) && Math.abs(number) < 1e21;
  return isWhole ? normalized(BigInt(number)) : new Float(number);
}
