// Maps code points to letters. The code points of a letter are in the same sets of a pattern.
import { required } from '../required.js';
import type { CharSet } from './char-set.js';

/** The letter before the start and after the end of a text. */
export const EDGE = 0;
const UNKNOWN = 0xffff;
const ASCII = 0x80;
const BMP = 0x10000;
/** Letters of a pattern; more code points than letters are classified again each time. */
const MAX_OTHERS = 10_000;

export class Alphabet {
  /** For each set: 1 at the letters that belong to it. */
  private readonly members: Uint8Array[];
  private readonly letters = new Map<string, number>();
  private readonly others = new Map<number, number>();
  private table = new Uint16Array(ASCII).fill(UNKNOWN);

  constructor(private readonly sets: readonly CharSet[]) {
    this.members = [new Uint8Array(sets.length)];
  }

  /** Number of letters so far. */
  get size(): number {
    return this.members.length;
  }

  has(letter: number, set: number): boolean {
    return required(this.members[letter])[set] === 1;
  }

  letterOf(code: number): number {
    if (code < this.table.length) {
      const known = required(this.table[code]);
      if (known !== UNKNOWN) return known;
    } else if (code >= BMP) {
      const known = this.others.get(code);
      if (known !== undefined) return known;
    }
    const letter = this.classify(code);
    if (code >= BMP) {
      if (this.others.size < MAX_OTHERS) this.others.set(code, letter);
      return letter;
    }
    if (code >= this.table.length) {
      const grown = new Uint16Array(BMP).fill(UNKNOWN);
      grown.set(this.table);
      this.table = grown;
    }
    this.table[code] = letter;
    return letter;
  }

  private classify(code: number): number {
    const member = Uint8Array.from(this.sets, (set) => (set.has(code) ? 1 : 0));
    const key = member.join('');
    let letter = this.letters.get(key);
    if (letter === undefined) {
      letter = this.members.push(member) - 1;
      this.letters.set(key, letter);
    }
    return letter;
  }
}
