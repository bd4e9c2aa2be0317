// The interface of an engine that the server uses. Tests implement it without a model.
import type { GenerateRequest, GenerationPiece, InferenceStats } from '../inference/index.js';
import type { Tokenizer } from '../text/index.js';

/** Sampling options of one prompt. */
export type ContinuationOptions = Omit<
  GenerateRequest,
  'prompt' | 'messages' | 'tools' | 'variables' | 'signal' | 'onStart'
>;

/** A prompt to continue. */
export type ContinuationRequest = GenerateRequest & { prompt: readonly number[] };

/** New text and tokens of one continuation. */
export type ServedPiece = GenerationPiece;

/** Logprob of a token, and its alternatives. */
export type ServedLogprob = NonNullable<GenerationPiece['logprobs']>[number];

/** Counters of an engine. */
export type EngineStats = Pick<
  InferenceStats,
  | ('running' | 'waiting' | 'blocksUsed' | 'blocks' | 'prefixQueries' | 'prefixHits')
  | ('promptTokens' | 'generatedTokens' | 'preemptions' | 'proposedTokens' | 'acceptedTokens')
> &
  Partial<Pick<InferenceStats, 'hostHits'>>;

/** Embeds texts, or scores documents for a query. */
export interface ServedEncoder {
  /** Task of the model. */
  readonly task: 'embedding' | 'ranking';
  /** Length of an embedding. */
  readonly width: number;
  /** Returns an embedding for each list of tokens. */
  embed(rows: readonly (readonly number[])[]): Promise<Float32Array[]>;
  /** Returns a score in (0, 1) for each document, and the number of tokens of all pairs. */
  rank(query: string, documents: readonly string[]): Promise<{ scores: number[]; tokens: number }>;
}

/** An InferenceEngine, or another engine that continues prompts. */
export interface ServedEngine {
  /** Null if prompts and answers are token ids. */
  readonly tokenizer: Tokenizer | null;
  /** Maximum number of tokens of a prompt and its continuation. */
  readonly maxTokens: number;
  /** Whether the size of the cache decides `maxTokens`. Default: false. */
  readonly isCacheBound?: boolean;
  /** The model. */
  readonly module: {
    readonly vocabSize: number;
    /** Largest `maxTokens` of the model; absent if unknown. */
    readonly maxSeq?: number;
    /** Its `generation` is the folder's generation_config.json. */
    describe(): object | null;
  };
  /** The error after which the engine cannot compute; null or absent while it works. */
  readonly failure?: Error | null;
  /** Set if the model embeds or ranks instead of generating. */
  readonly encoder?: ServedEncoder;
  /** Names of loaded adapters. */
  readonly adapters?: readonly string[];
  /** Loads an adapter from a folder or a name on the hub. Absent: the engine has no adapters. */
  loadAdapter?(name: string, source: string): Promise<void>;
  /** Unloads an adapter. Running requests keep it. */
  unloadAdapter?(name: string): void;
  /**
   * Returns the logprobs of a prompt's tokens; null for the first. Absent if the engine cannot
   * compute them.
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
