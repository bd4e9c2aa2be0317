// Words of a POSIX shell: quoting them, and splitting a line of them.
import { refuse } from './argument-error.js';

/** `word` such that a POSIX shell takes it unchanged, whatever it holds. */
export function quote(word: string): string {
  return /^[\w./:=@%+-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}

/**
 * The words of `line`, with quotes and backslashes as in a shell and nothing expanded. Throws
 * DS_ARGUMENT.
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
