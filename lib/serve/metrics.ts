// Server metrics in the text format of GET /metrics.
import { formatMetric, Histogram } from './histogram.js';
import type { EngineStats, ServedPiece } from './served-engine.js';

const SHORT_SECONDS = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5];
const LONG_SECONDS = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600];

const now = (): number => performance.now() / 1000;

/** Counts requests and responses, and measures latencies. */
export class Metrics {
  private readonly firstToken = new Histogram(LONG_SECONDS);
  private readonly betweenTokens = new Histogram(SHORT_SECONDS);
  private readonly wholeRequest = new Histogram(LONG_SECONDS);
  private readonly queue = new Histogram(LONG_SECONDS);
  private readonly finished = new Map<string, number>();
  private readonly responses = new Map<string, number>();

  /** Counts a response by its HTTP status. */
  countResponse(status: number): void {
    increment(this.responses, String(status));
  }

  /** Starts to measure one request. */
  watch(): RequestWatch {
    return new RequestWatch({
      firstToken: this.firstToken,
      betweenTokens: this.betweenTokens,
      wholeRequest: this.wholeRequest,
      queue: this.queue,
      finish: (reason) => increment(this.finished, reason),
    });
  }

  /** Returns the text of GET /metrics. `engines` are the lines of the loaded models. */
  text(engines: readonly string[]): string {
    const labelCounts = (
      name: string,
      label: string,
      counts: ReadonlyMap<string, number>,
    ): string[] => Array.from(counts, ([value, count]) => `${name}{${label}="${value}"} ${count}`);
    const finished = 'ds_requests_finished_total';
    const responses = 'ds_http_responses_total';
    const times: [string, string, Histogram][] = [
      ['ds_time_to_first_token_seconds', 'From the request to its first token.', this.firstToken],
      ['ds_inter_token_seconds', 'Between two tokens of one answer.', this.betweenTokens],
      ['ds_request_seconds', 'From the request to its last token.', this.wholeRequest],
      ['ds_queue_seconds', 'From the request to the first work on it.', this.queue],
    ];
    return [
      ...engines,
      formatMetric(
        ...([finished, 'counter', 'Answers that ended, by the reason.'] as const),
        labelCounts(finished, 'reason', this.finished),
      ),
      formatMetric(
        ...([responses, 'counter', 'Responses, by their status.'] as const),
        labelCounts(responses, 'status', this.responses),
      ),
      ...times.map(([name, help, times]) =>
        formatMetric(name, 'histogram', help, times.lines(name)),
      ),
    ].join('');
  }
}

type EngineRow = [string, 'gauge' | 'counter', string, (stats: EngineStats) => number];

const ENGINE_ROWS: readonly EngineRow[] = [
  ['ds_requests_running', 'gauge', 'Sequences that are computed.', ({ running }) => running],
  ['ds_requests_waiting', 'gauge', 'Sequences that wait for memory.', ({ waiting }) => waiting],
  ['ds_cache_usage_ratio', 'gauge', 'Used blocks of the cache.', (s) => s.blocksUsed / s.blocks],
  ['ds_prefix_cache_queries_total', 'counter', 'Prompt tokens looked up.', (s) => s.prefixQueries],
  ['ds_prefix_cache_hits_total', 'counter', 'Prompt tokens found.', (s) => s.prefixHits],
  ['ds_prefix_cache_host_hits_total', 'counter', 'Found in the host.', (s) => s.hostHits ?? 0],
  ['ds_prompt_tokens_total', 'counter', 'Tokens of prompts.', (s) => s.promptTokens],
  ['ds_generation_tokens_total', 'counter', 'Tokens generated.', (s) => s.generatedTokens],
  ['ds_preemptions_total', 'counter', 'Sequences put back for memory.', (s) => s.preemptions],
  ['ds_draft_tokens_total', 'counter', 'Proposed tokens verified.', (s) => s.proposedTokens],
  ['ds_accepted_tokens_total', 'counter', 'Proposed tokens accepted.', (s) => s.acceptedTokens],
];

/**
 * Returns the counters of engines, by model name. The only engine of a server has the name null.
 */
export function engineMetrics(engines: ReadonlyMap<string | null, EngineStats>): string[] {
  if (engines.size === 0) return [];
  return ENGINE_ROWS.map(([name, type, help, value]) => {
    const lines = Array.from(engines, ([model, stats]) => {
      const label = model === null ? '' : `{model=${JSON.stringify(model)}}`;
      return `${name}${label} ${value(stats)}`;
    });
    return formatMetric(name, type, help, lines);
  });
}

function increment(counts: Map<string, number>, name: string): void {
  counts.set(name, (counts.get(name) ?? 0) + 1);
}

interface RequestHistograms {
  firstToken: Histogram;
  betweenTokens: Histogram;
  wholeRequest: Histogram;
  queue: Histogram;
  finish: (reason: string) => void;
}

/** Measures one request. */
export class RequestWatch {
  private readonly arrived = now();
  private isStarted = false;
  /** When each choice got its last token. */
  private readonly last = new Map<number, number>();

  constructor(private readonly clocks: RequestHistograms) {}

  /** Records that the engine has started to work on the request. */
  recordStart(): void {
    if (!this.isStarted) this.clocks.queue.observe(now() - this.arrived);
    this.isStarted = true;
  }

  /** Records a piece of a choice. */
  recordPiece(choice: number, { tokens, finishReason }: ServedPiece): void {
    const time = now();
    if (tokens.length > 0) {
      const before = this.last.get(choice);
      if (before !== undefined) {
        this.clocks.betweenTokens.observe((time - before) / tokens.length, tokens.length);
      } else if (this.last.size === 0) this.clocks.firstToken.observe(time - this.arrived);
      this.last.set(choice, time);
    }
    if (finishReason !== null) this.clocks.finish(finishReason);
  }

  /** Records that all choices are complete. */
  recordEnd(): void {
    this.clocks.wholeRequest.observe(now() - this.arrived);
  }
}
