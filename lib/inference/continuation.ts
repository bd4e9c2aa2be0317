// The state of one sampled sequence: its tokens, its text and its finish reason.
import { DsError } from '../errors.js';
import { Matcher } from '../runtime/grammar.js';
import { required } from '../runtime/required.js';
import type { Tokenizer } from '../text/index.js';
import type { ReadRequest } from './request.js';
import { needsCounts } from './sampler-rows.js';
import { type SampledToken, SequenceSampling, type TokenLogprob } from './sampling.js';
import { Sequence } from './sequence.js';
import { TextStream } from './text-stream.js';

/** Why generation ended: "stop" (end token or stop string), "length" (limit) or "abort". */
export type FinishReason = 'stop' | 'length' | 'abort';

/** A part of a continuation. Its text is final. */
export interface GenerationPiece {
  /** Index of the continuation, below the request's `n`. */
  readonly index: number;
  /** Complete characters; '' without a tokenizer or while a character is incomplete. */
  readonly text: string;
  /** Reasoning before the text, of a request with `messages` and `format`. */
  readonly reasoning?: string;
  /** Sampled tokens, including the end token. */
  readonly tokens: readonly number[];
  /** Logprobs of the tokens, if requested. */
  readonly logprobs?: readonly TokenLogprob[];
  /** Null until the last piece. */
  readonly finishReason: FinishReason | null;
  /** The stop string that ended the text. */
  readonly stopString?: string;
  /** Prompt tokens found in the prefix cache. */
  readonly cachedTokens: number;
}

/** A finished continuation. */
export interface Generation {
  /** The text without the prompt, the end token and the stop string. */
  readonly text: string;
  /** Reasoning before the text, of a request with `messages` and `format`. */
  readonly reasoning?: string;
  /** Sampled tokens, including the end token. */
  readonly tokens: readonly number[];
  /** Logprobs of the tokens, if requested. */
  readonly logprobs?: readonly TokenLogprob[];
  /** Why generation ended. */
  readonly finishReason: FinishReason;
  /** Number of tokens of the prompt. */
  readonly promptTokens: number;
  /** Prompt tokens found in the prefix cache. */
  readonly cachedTokens: number;
}

/** One of the `n` continuations of a request. */
export class Continuation {
  readonly sequence: Sequence;
  readonly sampling: SequenceSampling;
  /** Follows the text through the format of the request; null without one. */
  readonly matcher: Matcher | null;
  /** The sampler slot; null before the first sampled token. */
  slot: number | null = null;
  private reason: FinishReason | null = null;
  /** True if follow() has moved the matcher by the token that accept() gets next. */
  private hasFollowed = false;
  /** True if the format allows only an end token. */
  private isComplete = false;
  /** The stop string that ended the text. */
  private stopString: string | null = null;
  private readonly stream: TextStream | null;
  private readonly tokenizer: Tokenizer | null;

  constructor(
    private readonly request: ReadRequest,
    private readonly index: number,
    vocabulary: { tokenizer: Tokenizer | null; vocabSize: number },
    /** Slot of the adapter; -1: none. */
    adapter = -1,
  ) {
    const { prompt, maxNewTokens, cacheSalt, sampling, stop, textBefore, visibleTokens } = request;
    const { tokenizer } = vocabulary;
    const limit = prompt.length + maxNewTokens;
    this.sequence = new Sequence(prompt, limit, cacheSalt, adapter, request);
    this.sampling = new SequenceSampling('InferenceEngine request', sampling, vocabulary, index);
    this.stream = tokenizer && new TextStream(tokenizer, stop, textBefore, visibleTokens);
    this.tokenizer = tokenizer;
    const { grammar, stopTokens } = request;
    this.matcher = grammar && new Matcher(grammar, stopTokens);
  }

  /** End tokens. */
  get ends(): ReadonlySet<number> {
    return this.request.stopTokens;
  }

  get isDone(): boolean {
    return this.reason !== null;
  }

  get finishReason(): FinishReason | null {
    return this.reason;
  }

  /** True if proposals can be verified. Penalties need all tokens before the sampled one. */
  get maySpeculate(): boolean {
    return !needsCounts(this.sampling.rules);
  }

  /** Returns the tokens that the format forces next; empty if the model has a choice. */
  forcedTokens(): ArrayLike<number> {
    const text = this.matcher?.forced() ?? '';
    if (text === '' || !this.tokenizer) return [];
    return this.tokenizer.encode(text, { addSpecialTokens: false });
  }

  /** Appends a sampled token and returns its piece. */
  accept({ token, logprob }: SampledToken): GenerationPiece {
    const { sequence } = this;
    sequence.learn(token);
    if (!this.hasFollowed) this.follow(token);
    this.hasFollowed = false;
    const isEnd = this.request.stopTokens.has(token);
    // The head may be padded beyond the tokenizer's vocabulary. Padding tokens have no text.
    const hasText = !isEnd && this.tokenizer?.hasToken(token);
    const pushed = hasText ? this.stream?.push(token, this.mayStop) : null;
    if (isEnd) this.findStopToken(token);
    else this.stopString = pushed?.stop ?? null;
    if (isEnd || pushed?.stop || this.isComplete) this.reason = 'stop';
    else if (sequence.tokens.length >= sequence.limit) this.reason = 'length';
    const piece = this.createPiece((pushed?.text ?? '') + this.takeHeldText(), [token]);
    return logprob ? { ...piece, logprobs: [logprob] } : piece;
  }

  /**
   * Moves the matcher by the next token of accept(), so that threads can fill the mask after it
   * before accept(). The matcher is in use until they have ended.
   */
  follow(token: number): void {
    const { matcher } = this;
    this.hasFollowed = true;
    if (!matcher) return;
    if (!matcher.accept(token)) {
      const [expected, got] = ['a token that the format allows', `token ${token}`];
      throw new DsError({ code: 'DS_INTERNAL', op: 'InferenceEngine format', expected, got });
    }
    this.isComplete = matcher.isDone;
  }

  /** Ends the sequence with "abort" and returns the last piece. */
  abort(): GenerationPiece {
    this.reason = 'abort';
    return this.createPiece(this.takeHeldText(), []);
  }

  /** Stop strings apply after `minTokens` sampled tokens. Source: vLLM. */
  private get mayStop(): boolean {
    const { tokens, promptLength } = this.sequence;
    return tokens.length - promptLength > this.sampling.rules.minTokens;
  }

  /** Returns the held-back text at the end of the sequence. It may contain a stop string. */
  private takeHeldText(): string {
    if (!this.isDone) return '';
    const { text = '', stop = null } = this.stream?.end(this.mayStop) ?? {};
    if (stop) {
      this.reason = 'stop';
      this.stopString = stop;
    }
    return text;
  }

  /** Special tokens decode to no text, so a stop string that is one ends the text as a token. */
  private findStopToken(token: number): void {
    const text = this.tokenizer?.idToToken(token) ?? null;
    if (text !== null && this.request.stop.includes(text)) this.stopString = text;
  }

  private createPiece(text: string, tokens: readonly number[]): GenerationPiece {
    const cachedTokens = this.sequence.cached ?? 0;
    const piece = { index: this.index, text, tokens, finishReason: this.reason, cachedTokens };
    return this.stopString === null ? piece : { ...piece, stopString: this.stopString };
  }
}

/**
 * Joins the pieces of `n` continuations. Rejects with the reason of the request's signal if the
 * signal aborted one of them.
 */
export async function gatherPieces(
  pieces: AsyncIterable<GenerationPiece>,
  { n, prompt, signal }: ReadRequest,
): Promise<Generation[]> {
  const results = Array.from({ length: n }, () => ({
    text: '',
    tokens: [] as number[],
    cachedTokens: 0,
    finishReason: 'abort' as FinishReason,
    promptTokens: prompt.length,
    logprobs: undefined as TokenLogprob[] | undefined,
  }));
  const reasonings = results.map(() => '');
  for await (const piece of pieces) {
    const { index, text, tokens, logprobs, finishReason, cachedTokens } = piece;
    const item = required(results[index]);
    reasonings[index] += piece.reasoning ?? '';
    item.text += text;
    item.tokens.push(...tokens);
    if (logprobs) item.logprobs = [...(item.logprobs ?? []), ...logprobs];
    item.cachedTokens = cachedTokens;
    if (finishReason) item.finishReason = finishReason;
  }
  if (results.some(({ finishReason }) => finishReason === 'abort')) signal?.throwIfAborted();
  return results.map((item, i) => (reasonings[i] ? { ...item, reasoning: reasonings[i] } : item));
}
