// Logbook: collects the numbers of updates for log events, reports, the recording and the progress
// bar.
import { join } from 'node:path';
import type { Engine } from '../engine/engine.js';
import type { RunWatch } from '../engine/watch/run-watch.js';
import { CausalLM } from '../models/causal-lm.js';
import {
  CsvMonitor,
  flopsPerToken,
  type Monitor,
  MonitorMaster,
  ProgressBar,
  peakFlops,
  TensorBoardMonitor,
} from '../monitor/index.js';
import { type Module, PackedLinear, StoredParameter } from '../nn/index.js';
import { LoraLayer } from '../peft/index.js';
import { numel } from '../runtime/view.js';
import type { RunLength } from './configuration.js';
import type { AlertEvent, LogEvent, TrainerEvent } from './events.js';
import type { RunSettings } from './read-options.js';
import type { StepMetrics } from './step-metrics.js';
import type { TrainerState } from './trainer-state.js';

/** An enqueued update. Its loss and its norm are not yet on the host. */
interface PendingUpdate {
  step: number;
  epoch: number;
  lr: number;
  /** Whether a log event is due after it. */
  isDue: boolean;
}

export interface LogbookOptions {
  engine: Engine;
  settings: RunSettings;
  state: TrainerState;
  length: Pick<RunLength, 'maxSteps'>;
  /** Returns the FLOPs per token for a sequence length; null if no formula is known. */
  costOf: ((sequence: number) => number) | null;
  /** The recording of the run; null if nothing is recorded. */
  watch: RunWatch | null;
  /** Metrics of the method; null without a method. */
  metrics: StepMetrics | null;
}

/**
 * Collects the numbers of updates. It reads them one update late, so that the host does not wait
 * for the device.
 */
export class Logbook {
  private pending: PendingUpdate | null = null;
  /** The last update with numbers on the host; null before the first. */
  private last: PendingUpdate | null = null;
  /** Number of skipped updates, and whether the last update was skipped. */
  private skipped = 0;
  private wasSkipped = false;
  /** Sum of the losses since the last log event, and their number. */
  private lossSum = 0;
  private updates = 0;
  /** FLOPs per token in the last update; 0 if no formula is known. */
  private tokenFlops = 0;
  /** Number of tokens that countTokens() has added to the state. */
  private counted = 0;
  private lastLog: { time: number; tokens: number; flops: number };
  /** Null before a run begins, and without a bar. */
  private bar: ProgressBar | null = null;
  private readonly monitor: MonitorMaster;

  /** The method's metrics since the last log event; null without a method. */
  readonly metrics: StepMetrics | null;

  /** Opens the reports on rank 0. Throws DS_IO if a report cannot be created. */
  constructor(private readonly options: LogbookOptions) {
    const { engine, settings, state } = options;
    this.metrics = options.metrics;
    this.monitor = new MonitorMaster(engine.globalRank === 0 ? openReports(settings) : []);
    this.lastLog = startMeasurement(state);
  }

  /**
   * Begins a run: resets speed and skipped updates; rank 0 draws the progress bar. If the run
   * resumes from a checkpoint, a pending update belongs to the previous run and is dropped.
   */
  begin(isResumed = false): void {
    const { engine, settings, length } = this.options;
    if (isResumed) {
      [this.pending, this.lossSum, this.updates] = [null, 0, 0];
      this.metrics?.reset();
    }
    if (!this.pending) this.skipped = engine.skippedSteps;
    const draws = engine.globalRank === 0 && settings.progress;
    if (draws) this.bar ??= new ProgressBar({ total: length.maxSteps, stream: process.stderr });
    this.restartSpeed();
  }

  private restartSpeed(): void {
    this.lastLog = startMeasurement(this.options.state);
  }

  /** Stops the clock of the speed. The returned function starts it again. */
  suspend(): () => void {
    const start = performance.now();
    this.options.watch?.pause();
    return () => {
      this.lastLog.time += performance.now() - start;
    };
  }

  /**
   * Adds tokens and their FLOPs to the state. `tokens`: number of tokens that all ranks have read
   * in this run.
   */
  countTokens(tokens: number): void {
    const { state } = this.options;
    state.flops += this.tokenFlops * (tokens - this.counted);
    state.tokens += tokens - this.counted;
    this.counted = tokens;
  }

  /** Records that an update was enqueued. `sequence`: number of tokens of its sequences. */
  noteUpdate(update: PendingUpdate, sequence: number): void {
    this.pending = update;
    if (update.isDue) this.metrics?.fetch();
    this.tokenFlops = this.options.costOf?.(sequence) ?? 0;
  }

  /**
   * Reads the numbers of the pending update, if there is one. Returns alerts, and a log event if
   * one is due. Waits for the update's backward. Throws DS_NONFINITE as engine.backward() does.
   */
  readPending(): (AlertEvent | LogEvent)[] {
    const { pending } = this;
    if (!pending) return [];
    this.pending = null;
    this.last = pending;
    const { engine, settings } = this.options;
    const loss = engine.getGlobalLoss() ?? Number.NaN;
    if (Number.isFinite(loss) || !settings.log.nanFilter) {
      this.lossSum += loss;
      this.updates++;
    }
    this.bar?.update({ step: pending.step, loss, lr: pending.lr, ...this.computeSpeed() });
    const alerts = this.findAlerts(pending, loss);
    return pending.isDue ? [...alerts, this.createLog(pending)] : alerts;
  }

  /** Returns a log event of the updates since the last log event; null without such updates. */
  flushLog(): LogEvent | null {
    if (!this.last || this.updates === 0) return null;
    this.metrics?.fetch();
    return this.createLog(this.last);
  }

  /** Writes an event to the recording and to the reports. */
  report(event: TrainerEvent): void {
    if (this.options.watch) recordEvent(this.options.watch, event);
    if (!this.monitor.enabled) return;
    const numbers = listNumbers(event);
    const events = Object.entries(numbers).map(([name, value]) => ({
      name,
      value,
      step: event.step,
    }));
    if (events.length > 0) this.monitor.write(events);
  }

  /** Ends the progress bar. Resolves after the reports are on disk. */
  async pause(): Promise<void> {
    this.bar?.finish();
    await this.monitor.flush();
  }

  close(): void {
    this.metrics?.dispose();
    this.monitor.close();
  }

  /**
   * Returns an alert if this update was skipped and the previous one was not: a series gives one
   * alert.
   */
  private findAlerts({ step, epoch }: PendingUpdate, loss: number): AlertEvent[] {
    const { skippedSteps } = this.options.engine;
    const isSkipped = skippedSteps > this.skipped;
    const isNewSkip = isSkipped && !this.wasSkipped;
    [this.skipped, this.wasSkipped] = [skippedSteps, isSkipped];
    const { fp16 } = this.options.engine.config;
    const hint = fp16.enabled
      ? ' A few such updates are normal in fp16: the loss scale falls.'
      : '';
    const message = `Update ${step} was left out: its gradients were not finite, its loss was ${loss.toPrecision(5)}.${hint}`;
    return isNewSkip ? [{ type: 'alert', level: 'warning', step, epoch, message }] : [];
  }

  private createLog({ step, epoch, lr }: PendingUpdate): LogEvent {
    const { engine, state } = this.options;
    const { tokensPerSecond = 0, mfu } = this.computeSpeed();
    const event: LogEvent = {
      type: 'log',
      step,
      epoch,
      lr,
      tokensPerSecond,
      loss: this.lossSum / this.updates,
      gradNorm: engine.getGlobalGradNorm() ?? Number.NaN,
      tokens: state.tokens,
      mfu: mfu ?? null,
      skipped: engine.skippedSteps,
      metrics: this.metrics?.read() ?? {},
    };
    [this.lossSum, this.updates] = [0, 0];
    this.restartSpeed();
    state.addLog(event);
    return event;
  }

  /** Returns the speed since the last log event; {} if it is unknown. */
  private computeSpeed(): { tokensPerSecond?: number; mfu?: number } {
    const { engine, state } = this.options;
    const seconds = (performance.now() - this.lastLog.time) / 1000;
    const tokens = state.tokens - this.lastLog.tokens;
    if (seconds <= 0 || tokens <= 0) return {};
    const tokensPerSecond = tokens / seconds;
    const { bf16, fp16 } = engine.config;
    const dtype = bf16.enabled ? 'bf16' : fp16.enabled ? 'f16' : 'f32';
    const peak = peakFlops(engine.device, dtype);
    // FLOPs are summed per update, because sequence lengths may differ between updates.
    const flops = state.flops - this.lastLog.flops;
    if (peak === null || flops === 0) return { tokensPerSecond };
    return { tokensPerSecond, mfu: flops / seconds / (peak * engine.worldSize) };
  }
}

const startMeasurement = ({ tokens, flops }: TrainerState) => ({
  time: performance.now(),
  tokens,
  flops,
});

/**
 * Returns a function from sequence length to FLOPs per token of a language model, by PaLM's
 * formula; null for other models. The caller calls it before an engine owns the parameters and
 * changes shapes.
 */
export function createCostFunction(model: Module): LogbookOptions['costOf'] {
  if (!(model instanceof CausalLM)) return null;
  const { layers, heads, channels, headDim = channels / heads } = model.config;
  const isTable = (name: string): boolean =>
    /(^|\.)(wpe|wte|embed_tokens|embed_in)\.weight$/.test(name);
  const { lm_head } = model;
  const head = lm_head instanceof PackedLinear ? null : lm_head.weight;
  const packed = model
    .modules()
    .map((module) => (module instanceof LoraLayer ? module.base : module))
    .filter((module) => module instanceof PackedLinear);
  const multiplied = [...model.namedParameters()].filter(
    ([name, parameter]) =>
      parameter === head || !(isTable(name) || parameter instanceof StoredParameter),
  );
  const sizes = [...multiplied.map(([, { shape }]) => shape), ...packed.map(({ shape }) => shape)];
  const parameters = sizes.reduce((sum, shape) => sum + numel(shape), 0);
  return (sequence) => flopsPerToken({ parameters, layers, width: heads * headDim, sequence });
}

/** Writes an event to the recording. The engine records updates itself. */
function recordEvent(watch: RunWatch, event: TrainerEvent): void {
  switch (event.type) {
    case 'begin':
      watch.length(event.maxSteps);
      break;
    case 'log': {
      const { tokensPerSecond, tokens, mfu, step } = event;
      watch.speed(step, {
        tokens_per_second: tokensPerSecond,
        tokens,
        ...(mfu !== null && { mfu }),
      });
      if (Object.keys(event.metrics).length > 0) watch.scalars(event.metrics);
      break;
    }
    case 'evaluate':
      watch.evaluated(event.metrics);
      break;
    case 'alert':
      watch.notice(event.message, event.level);
      break;
    case 'end':
      watch.ended(event.reason);
  }
}

/** Returns the numbers of an event, by their names in transformers' integrations. */
function listNumbers(event: TrainerEvent): Record<string, number> {
  if (event.type === 'evaluate') {
    const named = Object.entries(event.metrics).map(([name, value]) => [`eval/${name}`, value]);
    return Object.fromEntries(named);
  }
  if (event.type !== 'log') return {};
  const { loss, gradNorm, lr, epoch, tokens, tokensPerSecond, mfu, metrics } = event;
  const named = Object.entries(metrics).map(([name, value]) => [`train/${name}`, value]);
  return {
    'train/loss': loss,
    'train/grad_norm': gradNorm,
    'train/learning_rate': lr,
    'train/epoch': epoch,
    'train/num_tokens': tokens,
    'train/tokens_per_second': tokensPerSecond,
    ...(mfu === null ? {} : { 'train/mfu': mfu }),
    ...(Object.fromEntries(named) as Record<string, number>),
  };
}

function openReports({ report, save, runName }: LogbookOptions['settings']): Monitor[] {
  const at = { outputPath: join(save?.dir ?? '.', 'runs'), jobName: runName };
  return report.map((report) => {
    if (report === 'tensorboard') return new TensorBoardMonitor(at);
    return report === 'csv' ? new CsvMonitor(at) : report;
  });
}
