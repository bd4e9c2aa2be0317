// Quotes words for a POSIX shell, and splits a line into words.
import { refuse } from './argument-error.js';

/** Quotes `word` so that a POSIX shell reads it unchanged. */
export function quote(word: string): string {
  return /^[\w./:=@%+-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}

/**
 * Splits `line` into words, with a shell's quotes and backslashes but without expansion. Throws
 * DS_ARGUMENT for an open quote.
 */
export function splitWords(option: string, line: string): string[] {
  const words: string[] = [];
  const pattern = /\s+|((?:[^\s'"\\]|'[^']*'|"(?:[^"\\]|\\.)*"|\\.)+)/gsy;
  while (pattern.lastIndex < line.length) {
    const match = pattern.exec(line);
    if (!match) return refuse(option, 'words with closed quotes', JSON.stringify(line));
    if (match[1] !== undefined) words.push(unquote(match[1]));
  }
  return words;
}

function unquote(word: string): string {
  return word.replace(/'([^']*)'|"((?:[^"\\]|\\.)*)"|\\(.)/gs, (_, single, double, escaped) => {
    return single ?? double?.replace(/\\(["\\$`])/g, '$1') ?? escaped;
  });
}
