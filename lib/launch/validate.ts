// `ds validate`: a configuration checked without a model, a device or training.
import { checkConfig } from '../config/index.js';

export interface Validation {
  valid: boolean;
  /** What to print: errors and notices, or JSON. */
  text: string;
}

/** Resolves `file` for `worldSize` ranks and lists every error, or every notice and the result. */
export function validate(file: string, worldSize: number, json: boolean): Validation {
  const { config, errors } = checkConfig(file, { worldSize });
  const valid = config !== null;
  if (json) {
    const faults = errors.map(({ code, op, expected, got, hint }) => {
      return { code, op, expected, got, hint };
    });
    return { valid, text: JSON.stringify({ valid, errors: faults, config }, null, 2) };
  }
  if (!config) {
    const lines = errors.map((error) => `error: ${error.message}`);
    return { valid, text: lines.join('\n') };
  }
  const { notices, ...values } = config;
  const lines = notices.map((notice) => `note: ${notice}`);
  return { valid, text: [...lines, JSON.stringify(values, null, 2)].join('\n') };
}
