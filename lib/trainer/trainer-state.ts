// TrainerState: the progress of a Trainer, in the fields of transformers' trainer_state.json.
import type { JsonObject, JsonValue } from '../../types/json.js';
import { DsError } from '../errors.js';
import type { EvaluateEvent, LogEvent } from './events.js';
import type { RunSettings } from './read-options.js';

/**
 * Marks a trainer_state.json that a Trainer here wrote. It is a key of stateful_callbacks, because
 * transformers accepts unknown names only there.
 */
const OURS = '@ds/native';

/** Returns whether a Trainer here wrote a trainer_state.json with this text. */
export function isMadeByTrainer(text: string): boolean {
  try {
    return OURS in (JSON.parse(text) as { stateful_callbacks: object }).stateful_callbacks;
  } catch {
    return false; // The text is no JSON, or has no such field.
  }
}

/** The best evaluation so far. */
export interface BestEvaluation {
  /** Value of the metric that `save.best` names. */
  metric: number;
  /** Number of updates before it. */
  step: number;
  /** Folder of its checkpoint; null until the checkpoint is written. */
  checkpoint: string | null;
}

/** The progress of a Trainer. It is the same on every rank. */
export class TrainerState {
  /** Number of updates so far. */
  step = 0;
  /** Number of passes over the data so far, with a fraction. */
  epoch = 0;
  /**
   * Number of tokens that all ranks have read, without padding; of samples for data without tokens.
   */
  tokens = 0;
  /** FLOPs for these tokens; 0 if no formula is known for the model. */
  flops = 0;
  /** The best evaluation; null before the first evaluation, and without `save.best`. */
  best: BestEvaluation | null = null;
  /** Number of consecutive evaluations without improvement. */
  unimproved = 0;
  /** The last checkpoint that this run has written or loaded; null before. */
  checkpoint: string | null = null;
  /** Log events and evaluations, in the format of transformers. */
  readonly history: JsonObject[] = [];

  /** @internal Adds a log event to the history. */
  addLog({ step, epoch, loss, gradNorm, lr, tokens, metrics }: LogEvent): void {
    const common = { loss, grad_norm: gradNorm, learning_rate: lr, num_tokens: tokens };
    const numbers = { ...common, ...metrics };
    this.history.push({ ...finite(numbers), epoch, step });
  }

  /** @internal Adds an evaluation to the history. */
  addEvaluation({ step, epoch, metrics }: Pick<EvaluateEvent, 'step' | 'epoch' | 'metrics'>): void {
    const named = Object.entries(metrics).map(([name, value]) => [`eval_${name}`, value]);
    this.history.push({ ...finite(Object.fromEntries(named)), epoch, step });
  }

  /** @internal Whether the history contains an evaluation of the current step. */
  get isEvaluated(): boolean {
    const isJudged = (entry: JsonObject): boolean =>
      Object.keys(entry).some((name) => name.startsWith('eval_'));
    return this.history.some((entry) => entry.step === this.step && isJudged(entry));
  }

  /**
   * @internal Returns the content of trainer_state.json, in the format of transformers'
   * TrainerState.
   */
  toJson(settings: RunSettings, run: { maxSteps: number; batchSize: number }): JsonObject {
    const { best } = this;
    const { earlyStop } = settings;
    return {
      best_global_step: best?.step ?? null,
      best_metric: best?.metric ?? null,
      best_model_checkpoint: best?.checkpoint ?? null,
      epoch: this.epoch,
      eval_steps: stepsOrNull(settings.eval?.every),
      global_step: this.step,
      is_hyper_param_search: false,
      is_local_process_zero: true,
      is_world_process_zero: true,
      log_history: [...this.history],
      logging_steps: stepsOrNull(settings.log.every),
      max_steps: run.maxSteps,
      num_input_tokens_seen: this.tokens,
      num_train_epochs: Math.ceil(settings.epochs),
      save_steps: stepsOrNull(settings.save?.every),
      stateful_callbacks: {
        [OURS]: { args: {}, attributes: {} },
        ...(earlyStop && {
          EarlyStoppingCallback: {
            args: {
              early_stopping_patience: earlyStop.patience,
              early_stopping_threshold: earlyStop.threshold,
            },
            attributes: { early_stopping_patience_counter: this.unimproved },
          },
        }),
      },
      total_flos: this.flops,
      train_batch_size: run.batchSize,
      trial_name: null,
      trial_params: null,
    };
  }

  /**
   * @internal Restores the progress from a result of toJson(). Throws DS_CHECKPOINT for other
   * values.
   */
  loadJson(saved: JsonObject, location: string): void {
    const number = (name: string): number => {
      const value = saved[name];
      if (typeof value === 'number' && Number.isFinite(value)) return value;
      throw damagedError(`${location}: ${name}`, 'a number', value);
    };
    this.step = number('global_step');
    this.epoch = number('epoch');
    this.tokens = number('num_input_tokens_seen');
    this.flops = number('total_flos');
    const { log_history: history, best_metric: metric, best_model_checkpoint: folder } = saved;
    if (!Array.isArray(history)) throw damagedError(`${location}: log_history`, 'a list', history);
    this.history.splice(0, this.history.length, ...(history as JsonObject[]));
    this.best =
      typeof metric === 'number'
        ? {
            metric,
            step: number('best_global_step'),
            checkpoint: typeof folder === 'string' ? folder : null,
          }
        : null;
    const callbacks = (saved.stateful_callbacks ?? {}) as Record<string, JsonObject>;
    const attributes = callbacks.EarlyStoppingCallback?.attributes as JsonObject | undefined;
    this.unimproved = Number(attributes?.early_stopping_patience_counter ?? 0);
  }
}

/** Replaces NaN and infinity by null, because JSON has neither. */
function finite(numbers: Record<string, number>): JsonObject {
  const entries = Object.entries(numbers);
  return Object.fromEntries(
    entries.map(([name, value]) => [name, Number.isFinite(value) ? value : null]),
  );
}

const stepsOrNull = (every: unknown): number | null => (typeof every === 'number' ? every : null);

function damagedError(op: string, expected: string, got: JsonValue | undefined): DsError {
  return new DsError({
    code: 'DS_CHECKPOINT',
    op,
    expected,
    got: JSON.stringify(got) ?? 'nothing',
  });
}
