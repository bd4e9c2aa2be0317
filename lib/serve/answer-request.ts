// Generates the answer of a checked request and sends it to the client.
import type { ServerResponse } from 'node:http';
import { findAdapter } from './adapters.js';
import type { Answer, Usage } from './answer.js';
import { type AnswerPart, type PartLogprob, spelledLength } from './answer-format.js';
import { ApiError } from './api-error.js';
import { ChoiceReader, type PartText } from './choice-reader.js';
import { requireCompiled } from './format-fields.js';
import type { Metrics, RequestWatch } from './metrics.js';
import { limitToContext, type Options, type ParsedRequest } from './parsed-request.js';
import { RequestLife, whileAlive } from './request-life.js';
import type { RequestLog } from './request-log.js';
import type { ServedPiece } from './served-engine.js';
import type { ServedModel } from './served-model.js';
import type { CallPlan } from './tools.js';

/** Server state that all requests share. */
export interface RequestContext {
  readonly metrics: Metrics;
  /** Null without the option `logRequests`. */
  readonly log: RequestLog | null;
  /** Running requests. When the server stops, it ends them. */
  readonly lives: Set<RequestLife>;
  /** Converts any thrown value to the error that the client gets. */
  readonly apiError: (thrown: unknown) => ApiError;
}

/** One prompt of a request. */
interface PromptTask {
  prompt: readonly number[];
  options: Options;
  /** Index of its first choice. */
  first: number;
  /** Text to send before each choice. */
  echo: string;
}

/**
 * Generates and sends the answer. If it throws an ApiError, nothing was sent. Resolves after the
 * engine has released the request.
 */
export async function generateAnswer(
  served: ServedModel,
  parsed: ParsedRequest,
  response: ServerResponse,
  context: RequestContext,
): Promise<void> {
  const adapter = findAdapter(served, parsed.model);
  const name = adapter ?? served.name;
  if (adapter !== null) parsed.options.adapter = adapter;
  const watch = context.metrics.watch();
  const ownLife = new RequestLife(response, served.limits.requestSeconds);
  await whileAlive(context.lives, ownLife, async (life) => {
    if (parsed.formatField) await requireCompiled(parsed.formatField);
    const tasks = createTasks(served, parsed, await parsed.prompts(life));
    life.requireAlive();
    const answer = parsed.open({
      response,
      delivery: parsed.delivery,
      model: name,
      promptTokens: tasks.reduce((sum, { prompt }) => sum + prompt.length, 0),
      choices: tasks.length * parsed.options.n,
      overflow: life.overflow,
      maxUnread: served.limits.unreadBytes,
    });
    try {
      const run = new RequestRun(served, parsed, { life, answer, watch });
      const usage = await run.runAll(tasks);
      context.log?.addUsage(response, name, usage);
      answer.end(usage);
    } catch (thrown) {
      const error = context.apiError(thrown);
      context.log?.addError(response, error);
      answer.fail(error);
    }
  });
}

function createTasks(
  served: ServedModel,
  parsed: ParsedRequest,
  prompts: readonly (readonly number[])[],
): PromptTask[] {
  return prompts.map((prompt, i) => ({
    prompt,
    options: limitToContext(parsed, prompt.length, served),
    first: i * parsed.options.n,
    echo: parsed.echo?.(i) ?? '',
  }));
}

/** The prompt of a choice, and the text to send before the choice. */
interface Opening {
  prompt: readonly number[];
  echo: string;
}

interface RunParts {
  life: RequestLife;
  answer: Answer;
  watch: RequestWatch;
}

/** Runs the prompts of one request concurrently in the engine. */
class RequestRun {
  private readonly usage: Usage = { promptTokens: 0, completionTokens: 0, cachedTokens: 0 };
  /** Offset of the next part in the text, by choice. */
  private readonly offsets = new Map<number, number>();
  private readonly readers = new Map<number, ChoiceReader>();

  constructor(
    private readonly served: ServedModel,
    private readonly parsed: ParsedRequest,
    private readonly parts: RunParts,
  ) {}

  /**
   * Resolves with the token counts of all prompts. If a prompt fails, ends the others, waits for
   * them and rejects with the first error.
   */
  async runAll(tasks: readonly PromptTask[]): Promise<Usage> {
    const { life, watch } = this.parts;
    const ends = tasks.map((task) =>
      this.runTask(task).catch((error: unknown) => {
        life.end(error);
      }),
    );
    await Promise.all(ends);
    life.requireAlive();
    watch.recordEnd();
    return this.usage;
  }

  private async runTask({ prompt, options, first, echo }: PromptTask): Promise<void> {
    const { life, watch } = this.parts;
    const { engine } = this.served;
    const onStart = (): void => watch.recordStart();
    const request = { ...options, prompt, signal: life.signal, onStart };
    this.usage.promptTokens += prompt.length;
    const { maxNewTokens, n, logprobs } = options;
    const scores =
      this.parsed.echo && logprobs !== undefined ? this.promptLogprobs(prompt, logprobs) : null;
    if (scores || maxNewTokens === 0) {
      const finishReason = maxNewTokens === 0 ? 'length' : null;
      for (let i = 0; i < n; ++i)
        this.sendPrompt(first + i, { prompt, echo }, scores, finishReason);
      if (maxNewTokens === 0) return;
    }
    let cached = 0;
    for await (const piece of engine.stream(request)) {
      watch.recordPiece(first + piece.index, piece);
      if (life.signal.aborted) continue;
      if (piece.finishReason === 'abort') throw new ApiError(503, 'The engine was stopped.');
      // Only the first choice counts: the other choices reuse its blocks.
      if (piece.index === 0) cached = piece.cachedTokens ?? 0;
      if (this.sendPiece(first + piece.index, piece, { prompt, echo })) break;
    }
    this.usage.cachedTokens += cached;
  }

  /** Returns the logprobs of the prompt's tokens; null for the first token. */
  private promptLogprobs(prompt: readonly number[], top: number): PartLogprob[] {
    const { engine } = this.served;
    const engineLogprobs = engine.promptLogprobs?.(prompt, top, this.parsed.options.adapter) ?? [];
    return prompt.map((token, i) => engineLogprobs[i] ?? { token, logprob: null, top: [] });
  }

  /** Sends the echoed prompt as the first part of a choice. */
  private sendPrompt(
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

  /** Sends a piece of generated text. Returns true if the answer is complete. */
  private sendPiece(choice: number, piece: ServedPiece, { prompt, echo }: Opening): boolean {
    const { plan, options } = this.parsed;
    const { tokens } = piece;
    const known = this.offsets.get(choice);
    const offset = known ?? 0;
    const hasLogprobs = options.logprobs !== undefined;
    this.offsets.set(choice, offset + (hasLogprobs ? spelledLength(this.served, tokens) : 0));
    this.usage.completionTokens += tokens.length;
    if (!plan) {
      const text = known === undefined ? echo + piece.text : piece.text;
      this.send(choice, piece, offset, [{ text }]);
      return false;
    }
    const reader = this.getReader(choice, prompt, plan);
    const parts = reader.read(piece);
    this.usage.reasoningTokens ??= 0;
    if (reader.isThinking) this.usage.reasoningTokens += tokens.length;
    const isDone = reader.isDone && piece.finishReason === null && options.n === 1;
    const finishReason = reader.finishReason(isDone ? 'stop' : piece.finishReason);
    this.send(choice, { ...piece, finishReason }, offset, parts);
    if (isDone)
      this.parts.watch.recordPiece(choice, { ...piece, tokens: [], finishReason: 'stop' });
    return isDone;
  }

  private getReader(choice: number, prompt: readonly number[], plan: CallPlan): ChoiceReader {
    const known = this.readers.get(choice);
    if (known) return known;
    const end = this.served.forms.promptEnd(prompt, plan.visibleTokens);
    const reader = new ChoiceReader(plan, end);
    this.readers.set(choice, reader);
    return reader;
  }

  /**
   * Sends the parts of one piece. The first part carries the tokens, the last the finish reason.
   */
  private send(
    choice: number,
    piece: Pick<AnswerPart, 'finishReason' | 'stopString'> &
      Pick<ServedPiece, 'tokens' | 'logprobs'>,
    offset: number,
    parts: readonly PartText[],
  ): void {
    const { delivery, options } = this.parsed;
    const { tokens, logprobs = [], finishReason, stopString } = piece;
    const hasLogprobs = options.logprobs !== undefined;
    const all = parts.length > 0 ? parts : [{ text: '' }];
    for (const [i, partText] of all.entries()) {
      this.parts.answer.part(choice, {
        ...partText,
        offset,
        finishReason: i === all.length - 1 ? finishReason : null,
        ...(stopString !== undefined && i === all.length - 1 && { stopString }),
        tokens: delivery.tokenIds ? (i === 0 ? tokens : []) : null,
        logprobs: hasLogprobs ? (i === 0 ? logprobs : []) : null,
      });
    }
  }
}
