// From a checked request to its answer: prompts to tokens, tokens through the engine, parts to the
// client.
import type { ServerResponse } from 'node:http';
import { adapterOf } from './adapters.js';
import type { Answer, Usage } from './answer.js';
import { type AnswerPart, type PartLogprob, spelledLength } from './answer-format.js';
import { ApiError } from './api-error.js';
import { requireCompiled } from './format-fields.js';
import type { Metrics, RequestWatch } from './metrics.js';
import { type Options, type ParsedRequest, withinContext } from './parsed-request.js';
import { type PartText, PlannedReading } from './planned-reading.js';
import { RequestLife, whileAlive } from './request-life.js';
import type { ServedPiece } from './served-engine.js';
import type { ServedModel } from './served-model.js';
import type { CallPlan } from './tools.js';

/** State of the server that all requests share. */
export interface Counter {
  readonly metrics: Metrics;
  /** Requests under way. The end of the server ends them. */
  readonly lives: Set<RequestLife>;
  /** The answer to a client for any error. */
  readonly apiError: (thrown: unknown) => ApiError;
}

/** A prompt under way. */
interface Task {
  prompt: readonly number[];
  options: Options;
  /** The number of its first choice. */
  first: number;
  /** Text at the beginning of each choice. */
  echo: string;
}

/**
 * Answers, or throws an ApiError before anything of the answer was sent. Ends when the engine has
 * nothing left of the request.
 */
export async function answerParsed(
  served: ServedModel,
  parsed: ParsedRequest,
  response: ServerResponse,
  counter: Counter,
): Promise<void> {
  const adapter = adapterOf(served, parsed.model);
  const name = adapter ?? served.name;
  if (adapter !== null) parsed.options.adapter = adapter;
  const watch = counter.metrics.watch();
  const ownLife = new RequestLife(response, served.limits.requestSeconds);
  await whileAlive(counter.lives, ownLife, async (life) => {
    if (parsed.formatField) await requireCompiled(parsed.formatField);
    const tasks = tasksOf(served, parsed, await parsed.prompts(life));
    life.requireAlive();
    const answer = parsed.open({
      response,
      delivery: parsed.delivery,
      model: name,
      choices: tasks.length * parsed.options.n,
      overflow: life.overflow,
      maxUnread: served.limits.unreadBytes,
    });
    try {
      const run = new Run(served, parsed, { life, answer, watch });
      answer.end(await run.all(tasks));
    } catch (thrown) {
      answer.fail(counter.apiError(thrown));
    }
  });
}

function tasksOf(
  served: ServedModel,
  parsed: ParsedRequest,
  prompts: readonly (readonly number[])[],
): Task[] {
  return prompts.map((prompt, i) => ({
    prompt,
    options: withinContext(parsed, prompt.length, served),
    first: i * parsed.options.n,
    echo: parsed.echo?.(i) ?? '',
  }));
}

/** The beginning of a choice. */
interface Opening {
  prompt: readonly number[];
  echo: string;
}

interface RunParts {
  life: RequestLife;
  answer: Answer;
  watch: RequestWatch;
}

/** The prompts of one request, side by side in the engine. */
class Run {
  private readonly usage: Usage = { promptTokens: 0, completionTokens: 0, cachedTokens: 0 };
  /** By choice: the start of its next part in the text. */
  private readonly offsets = new Map<number, number>();
  private readonly readings = new Map<number, PlannedReading>();

  constructor(
    private readonly served: ServedModel,
    private readonly parsed: ParsedRequest,
    private readonly parts: RunParts,
  ) {}

  /**
   * Resolves with the usage of all prompts. Rejects with the first failure after all have ended.
   */
  async all(tasks: readonly Task[]): Promise<Usage> {
    const { life, watch } = this.parts;
    const ends = tasks.map((task) =>
      this.one(task).catch((error: unknown) => {
        life.end(error);
      }),
    );
    await Promise.all(ends);
    life.requireAlive();
    watch.ended();
    return this.usage;
  }

  private async one({ prompt, options, first, echo }: Task): Promise<void> {
    const { life, watch } = this.parts;
    const { engine } = this.served;
    const onStart = (): void => watch.started();
    const request = { ...options, prompt, signal: life.signal, onStart };
    this.usage.promptTokens += prompt.length;
    const { maxNewTokens, n, logprobs } = options;
    const scores =
      this.parsed.echo && logprobs !== undefined ? this.scores(prompt, logprobs) : null;
    if (scores || maxNewTokens === 0) {
      const finishReason = maxNewTokens === 0 ? 'length' : null;
      for (let i = 0; i < n; ++i)
        this.passPrompt(first + i, { prompt, echo }, scores, finishReason);
      if (maxNewTokens === 0) return;
    }
    let cached = 0;
    for await (const piece of engine.stream(request)) {
      watch.piece(first + piece.index, piece);
      if (life.signal.aborted) continue;
      if (piece.finishReason === 'abort') throw new ApiError(503, 'The engine was stopped.');
      // Only the first choice counts: the others find its cached blocks.
      if (piece.index === 0) cached = piece.cachedTokens ?? 0;
      if (this.pass(first + piece.index, piece, { prompt, echo })) break;
    }
    this.usage.cachedTokens += cached;
  }

  /** Logprobs of a prompt's tokens, the first without one. */
  private scores(prompt: readonly number[], top: number): PartLogprob[] {
    const { engine } = this.served;
    const found = engine.promptLogprobs?.(prompt, top, this.parsed.options.adapter) ?? [];
    return prompt.map((token, i) => found[i] ?? { token, logprob: null, top: [] });
  }

  /** Passes an echoed prompt on, as the first part of a choice. */
  private passPrompt(
    choice: number,
    { prompt, echo }: Opening,
    logprobs: readonly PartLogprob[] | null,
    finishReason: string | null,
  ): void {
    this.offsets.set(choice, spelledLength(this.served, prompt));
    this.parts.answer.part(choice, {
      text: echo,
      offset: 0,
      logprobs,
      finishReason,
      tokens: this.parsed.delivery.tokenIds ? prompt : null,
    });
  }

  /** Passes a piece on; true if the answer needs no more. */
  private pass(choice: number, piece: ServedPiece, { prompt, echo }: Opening): boolean {
    const { plan, options } = this.parsed;
    const { tokens } = piece;
    const begun = this.offsets.get(choice);
    const offset = begun ?? 0;
    const isAsked = options.logprobs !== undefined;
    this.offsets.set(choice, offset + (isAsked ? spelledLength(this.served, tokens) : 0));
    this.usage.completionTokens += tokens.length;
    if (!plan) {
      const text = begun === undefined ? echo + piece.text : piece.text;
      this.send(choice, piece, offset, [{ text }]);
      return false;
    }
    const reading = this.readingOf(choice, prompt, plan);
    const parts = reading.parts(piece);
    this.usage.reasoningTokens ??= 0;
    if (reading.isThinking) this.usage.reasoningTokens += tokens.length;
    const isDone = reading.isDone && piece.finishReason === null && options.n === 1;
    const finishReason = reading.reason(isDone ? 'stop' : piece.finishReason);
    this.send(choice, { ...piece, finishReason }, offset, parts);
    if (isDone) this.parts.watch.piece(choice, { ...piece, tokens: [], finishReason: 'stop' });
    return isDone;
  }

  private readingOf(choice: number, prompt: readonly number[], plan: CallPlan): PlannedReading {
    const known = this.readings.get(choice);
    if (known) return known;
    const end = this.served.forms.promptEnd(prompt, plan.visibleTokens);
    const made = new PlannedReading(plan, end);
    this.readings.set(choice, made);
    return made;
  }

  /** Tokens go with the first part, the finish reason with the last. */
  private send(
    choice: number,
    piece: Pick<AnswerPart, 'finishReason'> & Pick<ServedPiece, 'tokens' | 'logprobs'>,
    offset: number,
    parts: readonly PartText[],
  ): void {
    const { delivery, options } = this.parsed;
    const { tokens, logprobs = [], finishReason } = piece;
    const isAsked = options.logprobs !== undefined;
    const all = parts.length > 0 ? parts : [{ text: '' }];
    for (const [i, said] of all.entries()) {
      this.parts.answer.part(choice, {
        ...said,
        offset,
        finishReason: i === all.length - 1 ? finishReason : null,
        tokens: delivery.tokenIds ? (i === 0 ? tokens : []) : null,
        logprobs: isAsked ? (i === 0 ? logprobs : []) : null,
      });
    }
  }
}
