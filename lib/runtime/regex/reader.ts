// Reads a pattern letter by letter.
import { RegexFault } from './fault.js';

export class Reader {
  at = 0;

  constructor(readonly text: string) {}

  get isAtEnd(): boolean {
    return this.at >= this.text.length;
  }

  /** Returns the next code point as text; "" at the end. */
  peek(): string {
    const code = this.text.codePointAt(this.at);
    return code === undefined ? '' : String.fromCodePoint(code);
  }

  next(): string {
    const letter = this.peek();
    this.at += letter.length;
    return letter;
  }

  /** Skips `part` if it comes next. */
  skip(part: string): boolean {
    if (!this.text.startsWith(part, this.at)) return false;
    this.at += part.length;
    return true;
  }

  /** Returns the match of a sticky expression, which must be linear; null if it does not match. */
  take(expression: RegExp): RegExpExecArray | null {
    expression.lastIndex = this.at;
    const match = expression.exec(this.text);
    if (match !== null) this.at = expression.lastIndex;
    return match;
  }

  fault(message: string, at = this.at): RegexFault {
    return new RegexFault(`${message} at ${at}`, this.text);
  }
}
