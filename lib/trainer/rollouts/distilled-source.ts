// DistilledSource: the data of gkd(). The student or the teacher samples completions for rows of
// text.
import type { JsonObject } from '../../../types/json.js';
import { onAllRanks } from '../../checkpoint/index.js';
import { DsError } from '../../errors.js';
import type { GenerateRequest, InferenceEngine } from '../../inference/index.js';
import { initInference } from '../../inference/init-inference.js';
import type { CausalLM } from '../../models/causal-lm.js';
import { cpu } from '../../runtime/device.js';
import { argumentError } from '../../runtime/input-errors.js';
import { required } from '../../runtime/required.js';
import { Tensor } from '../../tensor/index.js';
import type { BatchSource } from '../data-source.js';
import type { RolloutEvent } from '../events.js';
import { MethodSource, type SourceParts, type SourceRequest } from '../methods/method.js';
import { openTrainData } from '../train-data.js';
import { hashOf } from './generation.js';
import { type Rollouts, rolloutsOf } from './rollouts.js';

/** How completions are sampled. */
interface DistilledPlan {
  readonly teacher: CausalLM;
  /** Probability that the student samples the completions of an update. */
  readonly lmbda: number;
  /** Whether the teacher samples the completions of the other updates. */
  readonly seqKd: boolean;
  readonly maxNewTokens: number;
  readonly temperature: number;
}

/** A batch of rows, with labels or with the target of each position. */
interface Rows {
  readonly ids: Tensor;
  readonly labels?: Tensor;
  readonly targets?: Tensor;
  readonly documents?: Tensor;
}

const IGNORED = -100;
/** The value of padding in `documents`. */
const PADDING = -1;
const OP = 'gkd lmbda';

/**
 * Opens the data if completions are sampled; returns null if the rows are used as they are. Throws
 * DS_ARGUMENT for `seqKd` at ZeRO stage 3.
 */
export async function openDistilled(
  plan: DistilledPlan,
  { data, settings, place, config }: SourceRequest,
): Promise<MethodSource | null> {
  if (plan.lmbda === 0 && !plan.seqKd) return null;
  if (plan.seqKd && config.zero_optimization.stage === 3) {
    throw argumentError('gkd seqKd', 'ZeRO stage 2 or lower', 'stage 3');
  }
  if (data === null) return null;
  const rows = await openTrainData(data, settings as never, place, config);
  const { seed, tokenizer } = settings;
  const pad = tokenizer?.padId ?? tokenizer?.eosId ?? 0;
  return new DistilledSource(plan, rows as BatchSource<Rows>, { seed, pad });
}

class DistilledSource extends MethodSource {
  private parts: SourceParts | null = null;
  private student: Rollouts | null = null;
  private teacher: { engine: InferenceEngine; maxTokens: number } | null = null;

  constructor(
    private readonly plan: DistilledPlan,
    private readonly rows: BatchSource<Rows>,
    private readonly own: { seed: number; pad: number },
  ) {
    super();
  }

  /**
   * Number of batches. Undefined if the rows have no length; the Trainer then requires `maxSteps`.
   */
  get length(): number {
    return this.rows.length as number;
  }

  begin(parts: SourceParts): void {
    this.parts = parts;
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<never> {
    for await (const batch of this.rows) {
      yield (await this.replaceAnswers(batch)) as never;
    }
  }

  /** Number of updates so far. It determines the sampling model and the seeds. */
  private get step(): number {
    return required(this.parts).progress.step;
  }

  /**
   * Returns `batch` with sampled completions, if any. All ranks decide the same, because all of
   * them take part in the sampling.
   */
  private async replaceAnswers(batch: Rows): Promise<unknown> {
    const { lmbda, seqKd } = this.plan;
    const chance = hashOf(`${this.own.seed} gkd ${this.step}`) / 2 ** 52;
    if (chance < lmbda) return this.sampleAnswers(batch, (...call) => this.byStudent(...call));
    return seqKd ? this.sampleAnswers(batch, (...call) => this.byTeacher(...call)) : batch;
  }

  private async sampleAnswers(
    batch: Rows,
    sample: (requests: GenerateRequest[], maxTokens: number) => Promise<(readonly number[])[]>,
  ): Promise<{ ids: Tensor; targets: Tensor }> {
    const prompts = promptsOf(batch);
    const whole = tokensOf(batch);
    const { world, engine } = required(this.parts);
    const { maxNewTokens, temperature } = this.plan;
    const { seed } = this.own;
    const max = (engine.module as CausalLM).sharedAnglesSeq;
    const requests = prompts.map((prompt, row): GenerateRequest => {
      const room = max - prompt.length;
      if (room < 1) throw tooLong(prompt.length, max);
      // The seed depends on the row's tokens, not on its rank or micro-batch, so samples do not
      // either.
      const ownHash = hashOf(`${seed} gkd ${this.step} ${whole[row]}`);
      const sampling = { temperature, seed: ownHash, maxNewTokens: Math.min(maxNewTokens, room) };
      return { prompt, ...sampling };
    });
    const longest = Math.max(...prompts.map(({ length }) => length));
    let completions: (readonly number[])[] = [];
    await onAllRanks(world, 'sampling completions', async () => {
      completions = await sample(requests, Math.min(max, longest + maxNewTokens));
      return null;
    });
    for (const tensor of Object.values(batch)) if (tensor instanceof Tensor) tensor.dispose();
    return rowsOf(prompts, completions, this.own.pad);
  }

  private async byStudent(requests: GenerateRequest[], maxTokens: number) {
    if (this.student && this.student.maxTokens < maxTokens) {
      await this.student.destroy();
      this.student = null;
    }
    this.student ??= rolloutsOf(required(this.parts).engine, { maxTokens });
    const found = await this.student.generate(requests);
    return found.map(([item]) => required(item).tokens);
  }

  private async byTeacher(requests: GenerateRequest[], maxTokens: number) {
    if (this.teacher && this.teacher.maxTokens < maxTokens) {
      await this.teacher.engine.destroy();
      this.teacher = null;
    }
    if (!this.teacher) {
      const { device } = required(this.parts).engine;
      const { teacher } = this.plan;
      teacher.to(device).eval();
      const engine = await initInference(teacher, { max_out_tokens: maxTokens });
      this.teacher = { engine, maxTokens };
    }
    const { engine } = this.teacher;
    const found = await engine.generateBatch(requests);
    engine.sleep();
    return found.map(([item]) => required(item).tokens);
  }

  stateDict(): JsonObject {
    return { rows: this.rows.stateDict?.() ?? null };
  }

  loadStateDict({ rows }: JsonObject): void {
    if (rows) this.rows.loadStateDict?.(rows as JsonObject);
  }

  async close(): Promise<void> {
    await this.student?.destroy();
    await this.teacher?.engine.destroy();
    await this.rows.close?.();
  }

  events(): RolloutEvent[] {
    return [];
  }
}

/**
 * Returns the tokens of each row that precede the first counted token. Throws DS_ARGUMENT for
 * packed rows.
 */
function promptsOf({ ids, labels, targets, documents }: Rows): number[][] {
  const wanted = labels ?? targets;
  if (!(ids instanceof Tensor && wanted instanceof Tensor)) {
    throw argumentError('Trainer train', 'a text.TextDataset for gkd()', 'other data');
  }
  if (documents?.toArray().some((value) => Number(value) !== 0 && Number(value) !== PADDING)) {
    const hint = 'Open the rows with `packing: false`, or set `lmbda: 0`.';
    throw argumentError(OP, 'one document in each row', 'packed rows', hint);
  }
  const [rows, width] = ids.shape as [number, number];
  const [tokens, counted] = [ids, wanted].map((tensor) => tensor.toArray().map(Number)) as [
    number[],
    number[],
  ];
  return Array.from({ length: rows }, (_, row) => {
    const first = counted
      .slice(row * width, (row + 1) * width)
      .findIndex((value) => value !== IGNORED);
    // A target is stored at the position before its token.
    const end = first + (labels ? 0 : 1);
    if (first >= 0 && end > 0) return tokens.slice(row * width, row * width + end);
    const hint = 'Rows need a prompt with a completion, or messages; or set `lmbda: 0`.';
    throw argumentError(OP, 'a prompt before the tokens that count', 'a row without one', hint);
  });
}

/** Returns the tokens of each row without padding, as a text for the seed. */
function tokensOf({ ids, labels, targets, documents }: Rows): string[] {
  const [rows, width] = ids.shape as [number, number];
  const all = ids.toArray().map(Number);
  const padding = documents?.toArray().map((value) => Number(value) === PADDING);
  const wanted = (labels ?? targets)?.toArray().map(Number) ?? [];
  return Array.from({ length: rows }, (_, row) => {
    const own = all.slice(row * width, (row + 1) * width);
    const last = wanted
      .slice(row * width, (row + 1) * width)
      .findLastIndex((value) => value !== IGNORED);
    return own.filter((_, i) => (padding ? !padding[row * width + i] : i <= last)).join(' ');
  });
}

/** Returns the batch of prompts with completions, padded on the right. */
function rowsOf(
  prompts: readonly number[][],
  completions: readonly (readonly number[])[],
  pad: number,
): { ids: Tensor; targets: Tensor } {
  const whole = prompts.map((prompt, i) => [...prompt, ...(completions[i] ?? [])]);
  const width = Math.max(...whole.map(({ length }) => length));
  const shape = [whole.length, width];
  const ids = new Int32Array(whole.length * width).fill(pad);
  const targets = new Int32Array(whole.length * width).fill(IGNORED);
  for (const [row, tokens] of whole.entries()) {
    ids.set(tokens, row * width);
    targets.set(completions[row] ?? [], row * width + (prompts[row]?.length ?? 0) - 1);
  }
  const of = (values: Int32Array): Tensor => Tensor.from(values, { shape, device: cpu() });
  return { ids: of(ids), targets: of(targets) };
}

function tooLong(tokens: number, max: number): DsError {
  return new DsError({
    code: 'DS_LIMIT',
    op: OP,
    expected: `prompts of fewer than ${max} tokens, the limit of the model`,
    got: `${tokens}`,
    hint: 'Drop long rows: TextDataset.open({ length }).',
  });
}
