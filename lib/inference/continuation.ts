// One text that the engine continues: what has been sampled of it, and when it ends.
import type { Tokenizer } from '../text/index.js';
import type { ReadRequest } from './request.js';
import { type SampledToken, SequenceSampling, type TokenLogprob } from './sampling.js';
import { Sequence } from './sequence.js';
import { TextStream } from './text-stream.js';

/** Why a text ended: a token or string that ends it, its limit, or somebody's wish. */
export type FinishReason = 'stop' | 'length' | 'abort';

/** What has become certain of a continuation. */
export interface GenerationPiece {
  /** Which of the request's `n`. */
  readonly index: number;
  /** Text, of whole characters; '' without a tokenizer, and where a character is not yet whole. */
  readonly text: string;
  /** Tokens, one that ends the text included. */
  readonly tokens: readonly number[];
  /** How likely each was; where the request asked. */
  readonly logprobs?: readonly TokenLogprob[];
  /** Null while more follows. */
  readonly finishReason: FinishReason | null;
  /** Tokens of the prompt whose keys and values were there already. */
  readonly cachedTokens: number;
}

/** A continuation that has ended. */
export interface Generation {
  /** Without the prompt, and without what ended it. */
  readonly text: string;
  /** Without the prompt; with the token that ended it. */
  readonly tokens: readonly number[];
  /** How likely each was; where the request asked. */
  readonly logprobs?: readonly TokenLogprob[];
  /** Why it ended. */
  readonly finishReason: FinishReason;
  /** Tokens of the prompt. */
  readonly promptTokens: number;
  /** Those whose keys and values were there already. */
  readonly cachedTokens: number;
}

/** Made for each of a request's `n`. */
export class Continuation {
  readonly sequence: Sequence;
  readonly sampling: SequenceSampling;
  /** Where the sampler keeps what it knows of it; null until its first token is sampled. */
  slot: number | null = null;
  private reason: FinishReason | null = null;
  private readonly stream: TextStream | null;
  private readonly tokenizer: Tokenizer | null;

  constructor(
    private readonly request: ReadRequest,
    private readonly index: number,
    vocabulary: { tokenizer: Tokenizer | null; vocabSize: number },
  ) {
    const { prompt, maxNewTokens, cacheSalt, sampling, stop, textBefore } = request;
    const { tokenizer } = vocabulary;
    this.sequence = new Sequence(prompt, prompt.length + maxNewTokens, cacheSalt);
    this.sampling = new SequenceSampling('InferenceEngine request', sampling, vocabulary, index);
    this.stream = tokenizer && new TextStream(tokenizer, stop, textBefore);
    this.tokenizer = tokenizer;
  }

  /** Tokens that end it. */
  get ends(): ReadonlySet<number> {
    return this.request.stopTokens;
  }

  get isDone(): boolean {
    return this.reason !== null;
  }

  get finishReason(): FinishReason | null {
    return this.reason;
  }

  /** The next token was sampled. */
  accept({ token, logprob }: SampledToken): GenerationPiece {
    const { sequence } = this;
    sequence.learn(token);
    const isEnd = this.request.stopTokens.has(token);
    // Heads may be padded beyond the tokenizer's vocabulary: those tokens have no text.
    const hasText = !isEnd && this.tokenizer?.hasToken(token);
    const pushed = hasText ? this.stream?.push(token, this.mayStop) : null;
    if (isEnd || pushed?.stop) this.reason = 'stop';
    else if (sequence.tokens.length >= sequence.limit) this.reason = 'length';
    const piece = this.piece((pushed?.text ?? '') + this.rest(), [token]);
    return logprob ? { ...piece, logprobs: [logprob] } : piece;
  }

  /** Nobody wants more of it. */
  abort(): GenerationPiece {
    this.reason = 'abort';
    return this.piece(this.rest(), []);
  }

  /** A stop string counts from the first token behind `minTokens` on. Source: vLLM. */
  private get mayStop(): boolean {
    const { tokens, promptLength } = this.sequence;
    return tokens.length - promptLength > this.sampling.rules.minTokens;
  }

  /** What was held back, once the text has ended; a stop string may yet be in it. */
  private rest(): string {
    if (!this.isDone) return '';
    const { text = '', stop = null } = this.stream?.end(this.mayStop) ?? {};
    if (stop) this.reason = 'stop';
    return text;
  }

  private piece(text: string, tokens: readonly number[]): GenerationPiece {
    const cachedTokens = this.sequence.cached ?? 0;
    return { index: this.index, text, tokens, finishReason: this.reason, cachedTokens };
  }
}

/**
 * Puts the pieces of `n` continuations together. Rejects with the reason of the request's signal if
 * it has ended one of them.
 */
export async function gathered(
  pieces: AsyncIterable<GenerationPiece>,
  { n, prompt, signal }: ReadRequest,
): Promise<Generation[]> {
  const found = Array.from({ length: n }, () => ({
    ...{ text: '', tokens: [] as number[], cachedTokens: 0 },
    finishReason: 'abort' as FinishReason,
    promptTokens: prompt.length,
    logprobs: undefined as TokenLogprob[] | undefined,
  }));
  for await (const { index, text, tokens, logprobs, finishReason, cachedTokens } of pieces) {
    const one = found[index] as (typeof found)[number];
    one.text += text;
    one.tokens.push(...tokens);
    if (logprobs) one.logprobs = [...(one.logprobs ?? []), ...logprobs];
    one.cachedTokens = cachedTokens;
    if (finishReason) one.finishReason = finishReason;
  }
  if (found.some(({ finishReason }) => finishReason === 'abort')) signal?.throwIfAborted();
  return found;
}
