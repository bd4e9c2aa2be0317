// Hints for loaded values with names that the module does not have.

const FACTOR = /(^|\.)lora_([AB](\.[\w-]+)?\.weight|embedding_A|embedding_B|magnitude_vector)$/;

/** Returns whether an adapter has a parameter of this name. */
export const isFactor = (name: string): boolean => FACTOR.test(name);

/** The hint for values of other shapes. */
export const OTHER_MODEL = 'They were probably saved from another model.';

/** Names that only the module or only the values have. */
interface NameMismatch {
  readonly missing: readonly string[];
  readonly unexpected: readonly string[];
}

/**
 * Returns the hint of an error about names. `option` is the option that omits the check of names.
 * The hint mentions it only if no saved value would be lost.
 */
export function hintForNames({ missing, unexpected }: NameMismatch, option: string): string {
  if (unexpected.some(isFactor)) {
    return 'The values include adapters: call peft.addLora() with the same options first.';
  }
  if (unexpected.length > 0) {
    return `${OTHER_MODEL} Build the module that has these names.`;
  }
  if (missing.length > 0 && missing.every(isFactor)) {
    return `Load the base before peft.addLora(); ${option} leaves the adapters unchanged.`;
  }
  return `${OTHER_MODEL} ${option} keeps the values of the missing ones.`;
}
