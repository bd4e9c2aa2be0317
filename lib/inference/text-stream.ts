// Text of one sequence as its tokens come: whole characters, and nothing behind a stop string.
import type { Tokenizer } from '../text/index.js';
import { type StoppedText, StopStrings } from './stop-strings.js';

/**
 * All texts that were returned, joined, are the text of the tokens up to the first stop string.
 * Bytes of a character that is not complete and what may become a stop string are held back.
 */
export class TextStream {
  private readonly decode: ReturnType<Tokenizer['decodeStream']>;
  private readonly stops: StopStrings;

  /**
   * Of tokens that come `after` others. Throws DS_ARGUMENT for stop strings that are none. Special
   * tokens give no text.
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
   * Takes one token or several. Stop strings that `mayStop` denies are text. Throws DS_INDEX for a
   * number that is no token.
   */
  push(tokens: number | ArrayLike<number>, mayStop = true): StoppedText {
    return this.stops.push(this.decode.push(tokens), mayStop);
  }

  /** What was held back: no more tokens come. A stop string may still be among it. */
  end(mayStop = true): StoppedText {
    const last = this.stops.push(this.decode.end(), mayStop);
    return { text: last.text + this.stops.end(), stop: last.stop };
  }
}
