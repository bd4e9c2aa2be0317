// An engine without a model: its continuations follow from the prompt by arithmetic, a token a turn
// of the event loop.
import { join } from 'node:path';
import { setImmediate as turn } from 'node:timers/promises';
import { packageRoot } from '../../lib/runtime/package-root.js';
import type {
  ContinuationRequest,
  EngineStats,
  ServedEngine,
  ServedLogprob,
  ServedPiece,
} from '../../lib/serve/index.js';
import { Tokenizer } from '../../lib/text/index.js';

export const tokenizer = Tokenizer.fromPretrained(join(packageRoot(), 'examples', 'tokenizer'));

/** Tokens that are letters of text. */
const PLAIN = 200;
const TOP = 20;

/** The token at `place` of continuation `index`. */
export function tokenOf(prompt: readonly number[], index: number, place: number): number {
  const sum = prompt.reduce((total, token) => (total * 31 + token) % 9973, 7);
  return 32 + ((sum + index * 17 + place * 7) % (PLAIN - 32));
}

/** The text of a whole continuation. */
export function textOf(prompt: readonly number[], index: number, count: number): string {
  return tokenizer.decode(Array.from({ length: count }, (_, i) => tokenOf(prompt, index, i)));
}

function logprobOf(token: number, top: number): ServedLogprob {
  const likely = (rank: number) => ({ token: (token + rank) % PLAIN, logprob: -0.5 - rank });
  return { ...likely(0), top: Array.from({ length: Math.min(top, TOP) }, (_, i) => likely(i)) };
}

export class FakeEngine implements ServedEngine {
  readonly module = {
    vocabSize: 1007,
    describe: () => (this.generation ? { generation: this.generation } : {}),
  };
  readonly requests: ContinuationRequest[] = [];
  /** Streams that hold memory. */
  active = 0;
  aborted = 0;
  /** Waited for before every token. */
  pace: (place: number) => Promise<unknown> = () => turn();
  /** Thrown at this place of every stream. */
  failAt: { place: number; error: unknown } | null = null;
  /** Characters of the text that are held back until its end, as for a stop string. */
  holds = 0;
  /** Follows the text of every token. */
  padding = '';
  generation: Record<string, number | boolean> | null = null;
  private readonly counts = { promptTokens: 0, generatedTokens: 0 };

  constructor(
    readonly tokenizer: Tokenizer | null,
    readonly maxTokens = 4096,
  ) {}

  async *stream(request: ContinuationRequest): AsyncGenerator<ServedPiece> {
    const { prompt, maxNewTokens = 16, n = 1, signal } = request;
    this.requests.push(request);
    this.active++;
    this.counts.promptTokens += prompt.length;
    request.onStart?.();
    const hear = () => {}; // As an engine, which listens for each of its requests.
    signal?.addEventListener('abort', hear);
    const streams = Array.from({ length: n }, () => this.tokenizer?.decodeStream());
    const held = streams.map(() => '');
    try {
      for (let place = 0; place < maxNewTokens; ++place) {
        await this.pace(place);
        if (signal?.aborted) return;
        if (this.failAt?.place === place) throw this.failAt.error;
        for (const [index, decode] of streams.entries()) {
          const token = tokenOf(prompt, index, place);
          const isLast = place === maxNewTokens - 1;
          const decoded = (decode?.push(token) ?? '') + (isLast ? (decode?.end() ?? '') : '');
          const known = held[index] + decoded + this.padding;
          const text = isLast ? known : known.slice(0, Math.max(0, known.length - this.holds));
          held[index] = known.slice(text.length);
          this.counts.generatedTokens++;
          yield {
            index,
            text,
            tokens: [token],
            cachedTokens: Math.min(prompt.length, 2),
            ...(request.logprobs !== undefined && {
              logprobs: [logprobOf(token, request.logprobs)],
            }),
            finishReason: isLast ? 'length' : null,
          };
        }
      }
    } finally {
      this.active--;
      signal?.removeEventListener('abort', hear);
      if (signal?.aborted) this.aborted++;
    }
  }

  stats(): EngineStats {
    const none = {
      waiting: 0,
      prefixQueries: 0,
      prefixHits: 0,
      preemptions: 0,
      proposedTokens: 0,
      acceptedTokens: 0,
    };
    return { ...none, ...this.counts, running: this.active, blocksUsed: this.active, blocks: 64 };
  }
}
