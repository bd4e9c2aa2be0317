// Decodes the tokens of one sequence to text, up to the first stop string.
import type { Tokenizer } from '../text/index.js';
import { type StoppedText, StopStrings } from './stop-strings.js';

/**
 * Decodes tokens in a stream. The joined results equal the text of all tokens up to the first stop
 * string. Incomplete characters and possible stop strings are held back.
 */
export class TextStream {
  private readonly decode: ReturnType<Tokenizer['decodeStream']>;
  private readonly stops: StopStrings;

  /**
   * `after` are the tokens before the stream. Throws DS_ARGUMENT for invalid stop strings. Special
   * tokens decode to no text.
   */
  constructor(
    tokenizer: Pick<Tokenizer, 'decodeStream'>,
    stops: readonly string[] = [],
    after: readonly number[] = [],
  ) {
    this.decode = tokenizer.decodeStream({ after });
    this.stops = new StopStrings(stops);
  }

  /**
   * Takes one or more tokens. With `mayStop` false, stop strings are ordinary text. Throws DS_INDEX
   * for an invalid token id.
   */
  push(tokens: number | ArrayLike<number>, mayStop = true): StoppedText {
    return this.stops.push(this.decode.push(tokens), mayStop);
  }

  /** Returns the held-back text after the last token. It may contain a stop string. */
  end(mayStop = true): StoppedText {
    const last = this.stops.push(this.decode.end(), mayStop);
    return { text: last.text + this.stops.end(), stop: last.stop };
  }
}
