// Collects the numbers of updates for logs: means since the last log, speed, and the progress bar.
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

/** An update of the weights. The host waits for its loss and norm from the device. */
interface PendingUpdate {
  step: number;
  epoch: number;
  lr: number;
  /** Whether a log is due after it. */
  isDue: boolean;
}

export interface LogbookOptions {
  engine: Engine;
  settings: RunSettings;
  state: TrainerState;
  length: Pick<RunLength, 'maxSteps'>;
  /** FLOPs per token for a sequence length; null if no formula is known. */
  costOf: ((sequence: number) => number) | null;
  /** Null to record nothing. */
  watch: RunWatch | null;
  /** Metrics of the method, or null. */
  metrics: StepMetrics | null;
}

/** Collects numbers. They arrive one update late, so the host does not wait for the device. */
export class Logbook {
  private pending: PendingUpdate | null = null;
  /** The last update with numbers, or null. */
  private last: PendingUpdate | null = null;
  /** Number of skipped updates, and whether the last update was skipped. */
  private skipped = 0;
  private wasSkipped = false;
  /** Sum of the losses since the last log, and their number. */
  private lossSum = 0;
  private updates = 0;
  /** FLOPs per token of the last update; 0 if no formula is known. */
  private tokenFlops = 0;
  /** Number of tokens already counted by countTokens(). */
  private counted = 0;
  private lastLog: { time: number; tokens: number; flops: number };
  /** Null before a run begins. */
  private bar: ProgressBar | null = null;
  private readonly monitor: MonitorMaster;

  /** Sums of the method's metrics since the last log, or null. */
  readonly metrics: StepMetrics | null;

  /** Opens reports on the first rank. Throws DS_IO if a report cannot be created. */
  constructor(private readonly options: LogbookOptions) {
    const { engine, settings, state } = options;
    this.metrics = options.metrics;
    this.monitor = new MonitorMaster(engine.globalRank === 0 ? openReports(settings) : []);
    this.lastLog = startMeasurement(state);
  }

  /**
   * Begins a run: resets speed and skipped updates; rank 0 draws a bar. A pending update belongs to
   * this run unless the run resumes from a checkpoint.
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

  /** Stops the clock of training; the returned function starts it again. */
  suspend(): () => void {
    const start = performance.now();
    this.options.watch?.pause();
    return () => {
      this.lastLog.time += performance.now() - start;
    };
  }

  /**
   * Counts tokens and FLOPs. `tokens`: the number of tokens that all ranks have read in this run.
   */
  countTokens(tokens: number): void {
    const { state } = this.options;
    state.flops += this.tokenFlops * (tokens - this.counted);
    state.tokens += tokens - this.counted;
    this.counted = tokens;
  }

  /** Notes an enqueued update. `sequence`: tokens of its sequences. */
  noteUpdate(update: PendingUpdate, sequence: number): void {
    this.pending = update;
    if (update.isDue) this.metrics?.fetch();
    this.tokenFlops = this.options.costOf?.(sequence) ?? 0;
  }

  /**
   * Reads the numbers of the pending update once. Returns alerts, and a log if one is due. Waits
   * for the update's backward. Throws DS_NONFINITE: see engine.backward().
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

  /** Returns a log of the updates since the last log, or null. */
  flushLog(): LogEvent | null {
    if (!this.last || this.updates === 0) return null;
    this.metrics?.fetch();
    return this.createLog(this.last);
  }

  /** Writes an event to the reports. */
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

  /** Ends the bar; resolves when reports are on disk. */
  async pause(): Promise<void> {
    this.bar?.finish();
    await this.monitor.flush();
  }

  close(): void {
    this.metrics?.dispose();
    this.monitor.close();
  }

  /** Reports a skipped update only if the previous update was not skipped. */
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

  /** Returns the speed since the last log. */
  private computeSpeed(): { tokensPerSecond?: number; mfu?: number } {
    const { engine, state } = this.options;
    const seconds = (performance.now() - this.lastLog.time) / 1000;
    const tokens = state.tokens - this.lastLog.tokens;
    if (seconds <= 0 || tokens <= 0) return {};
    const tokensPerSecond = tokens / seconds;
    const { bf16, fp16 } = engine.config;
    const dtype = bf16.enabled ? 'bf16' : fp16.enabled ? 'f16' : 'f32';
    const peak = peakFlops(engine.device, dtype);
    const flops = state.flops - this.lastLog.flops; // Sequences may have had several lengths.
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
 * Returns the FLOPs per token of a language model, by the formula of PaLM, as a function of the
 * sequence length; null for other models. Call it before an engine owns the parameters.
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

/** Writes an event to the recording. The engine records steps itself. */
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

/** Returns the numbers of an event by the names of transformers' integrations. */
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
