// The part of an inference engine that the server uses. Tests implement it without a model.
import type { GenerateRequest, GenerationPiece, InferenceStats } from '../inference/index.js';
import type { Tokenizer } from '../text/index.js';

/** How one prompt is continued. */
export type ContinuationOptions = Omit<
  GenerateRequest,
  'prompt' | 'messages' | 'tools' | 'variables' | 'signal' | 'onStart'
>;

/** A prompt to continue. */
export type ContinuationRequest = GenerateRequest & { prompt: readonly number[] };

/** New text and tokens of one continuation. */
export type ServedPiece = GenerationPiece;

/** How likely a token was. */
export type ServedLogprob = NonNullable<GenerationPiece['logprobs']>[number];

/** Counters of an engine. */
export type EngineStats = Pick<
  InferenceStats,
  | ('running' | 'waiting' | 'blocksUsed' | 'blocks' | 'prefixQueries' | 'prefixHits')
  | ('promptTokens' | 'generatedTokens' | 'preemptions' | 'proposedTokens' | 'acceptedTokens')
> &
  Partial<Pick<InferenceStats, 'hostHits'>>;

/** Embeds texts, or ranks them for a query. */
export interface ServedEncoder {
  /** Kind of result. */
  readonly task: 'embedding' | 'ranking';
  /** Numbers of an embedding. */
  readonly width: number;
  /** Returns an embedding for each list of tokens. */
  embed(rows: readonly (readonly number[])[]): Promise<Float32Array[]>;
  /** Returns a score in (0, 1) for each document, and the tokens of all pairs. */
  rank(query: string, documents: readonly string[]): Promise<{ scores: number[]; tokens: number }>;
}

/** An InferenceEngine, or anything that continues prompts as it does. */
export interface ServedEngine {
  /** Null where prompts and answers are tokens. */
  readonly tokenizer: Tokenizer | null;
  /** Tokens of a prompt and its continuation together. */
  readonly maxTokens: number;
  /** The model. */
  readonly module: {
    readonly vocabSize: number;
    /** Its `generation` is the folder's generation_config.json. */
    describe(): object | null;
  };
  /** The error after which it computes nothing more; null, or absent, while it works. */
  readonly failure?: Error | null;
  /** Set if the model embeds or ranks in place of generating. */
  readonly encoder?: ServedEncoder;
  /** Names of loaded adapters, which requests may use. */
  readonly adapters?: readonly string[];
  /** Loads an adapter from a folder or a name on the hub. Absent: the engine has no adapters. */
  loadAdapter?(name: string, place: string): Promise<void>;
  /** Unloads an adapter; requests in progress keep it. */
  unloadAdapter?(name: string): void;
  /**
   * Returns logprobs of a prompt's tokens; null for the first. Absent: the engine computes none.
   */
  promptLogprobs?(
    prompt: readonly number[],
    top: number,
    adapter?: string | null,
  ): (ServedLogprob | null)[];
  /** Continues a prompt. Aborting `signal` or leaving the loop frees the memory of the request. */
  stream(request: ContinuationRequest): AsyncIterable<ServedPiece>;
  /** Returns counters of its work. */
  stats(): EngineStats;
}
