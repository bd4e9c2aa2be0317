// What serving needs of an inference engine.
import type { Tokenizer } from '../text/index.js';

/** How one prompt is continued, by the engine's names. */
export interface ContinuationOptions {
  temperature?: number;
  topK?: number;
  topP?: number;
  minP?: number;
  repetitionPenalty?: number;
  presencePenalty?: number;
  frequencyPenalty?: number;
  logitBias?: Readonly<Record<number, number>>;
  badWords?: readonly string[];
  allowedTokens?: readonly number[];
  minTokens?: number;
  seed?: number;
  /** How many of the likeliest tokens are told beside each sampled one; 0 tells that one alone. */
  logprobs?: number;
  maxNewTokens?: number;
  stop?: readonly string[];
  stopTokens?: readonly number[];
  ignoreEos?: boolean;
  /** How many continuations. */
  n?: number;
  /** Prompts of other salts share no cached keys and values. */
  cacheSalt?: string;
}

/** One prompt to be continued. */
export interface ContinuationRequest extends ContinuationOptions {
  prompt: readonly number[];
  signal?: AbortSignal;
  /** Is called when the engine begins to compute the prompt. */
  onStart?: () => void;
}

/** How likely a token was. */
export interface ServedLogprob {
  token: number;
  logprob: number;
  /** The likeliest tokens, as many as were asked for. */
  top: readonly { token: number; logprob: number }[];
}

/** What has become certain of one continuation. */
export interface ServedPiece {
  /** Which of the `n`. */
  index: number;
  text: string;
  tokens: readonly number[];
  logprobs?: readonly ServedLogprob[];
  finishReason: null | 'stop' | 'length' | 'abort';
  /** Tokens of the prompt whose keys and values were there already. */
  cachedTokens?: number;
}

/** Counters of an engine. */
export interface EngineStats {
  running: number;
  waiting: number;
  blocksUsed: number;
  blocks: number;
  /** Tokens of prompts that were looked up in the prefix cache, and found there. */
  prefixQueries: number;
  prefixHits: number;
  promptTokens: number;
  generatedTokens: number;
  preemptions: number;
}

/** An InferenceEngine, or anything that continues prompts as it does. */
export interface ServedEngine {
  readonly tokenizer: Tokenizer | null;
  /** Tokens of a prompt and its continuation together. */
  readonly maxTokens: number;
  readonly module: {
    readonly vocabSize: number;
    /** Its `generation` is the folder's generation_config.json. */
    describe(): object | null;
  };
  /** Aborting `signal`, or leaving the loop, frees what the continuations hold. */
  stream(request: ContinuationRequest): AsyncIterable<ServedPiece>;
  stats(): EngineStats;
}
