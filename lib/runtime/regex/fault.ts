/** A pattern with a syntax error, or with a construct that the engine does not support. */
export class RegexFault extends Error {
  constructor(message: string, pattern: string) {
    super(`${message}, in the pattern ${shorten(pattern)}`);
    this.name = 'RegexFault';
  }
}

const SHOWN = 200;

const shorten = (text: string): string =>
  JSON.stringify(text.length > SHOWN ? `${text.slice(0, SHOWN)}...` : text);
