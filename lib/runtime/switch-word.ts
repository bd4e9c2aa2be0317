// Reads words for true and false, as the parsers of DeepSpeed and transformers do.

const TRUE = ['true', 'yes', 'on', 't', 'y', '1'];
const FALSE = ['false', 'no', 'off', 'f', 'n', '0'];

/** Returns the meaning of `word`, in lower case; null for another word. */
export function readSwitchWord(word: string): boolean | null {
  if (TRUE.includes(word)) return true;
  return FALSE.includes(word) ? false : null;
}
