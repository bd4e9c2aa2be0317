// Connects monitors to the steps of an engine. Event names are DeepSpeed's.
import type { ResolvedConfig } from '../../../types/config.js';
import {
  ConsoleMonitor,
  CsvMonitor,
  type LogFolder,
  type Monitor,
  MonitorMaster,
  TensorBoardMonitor,
} from '../../monitor/index.js';
import { type SegmentTimes, times as segmentTimes } from '../../tensor/recompute/index.js';
import type { ReleaseStack } from '../release-stack.js';
import type { FinishedStep, StepObserver, TimedStep } from './phase-timer.js';

/** Prints the mean device milliseconds of checkpointed segments, at every N-th step. */
export class SegmentLines implements StepObserver {
  constructor(private readonly every: number) {}

  stepFinished({ step }: FinishedStep): void {
    if (step % this.every !== 0) return;
    const times = segmentTimes();
    if (times.length > 0) process.stdout.write(`${formatSegments(step, times)}\n`);
  }
}

/**
 * Returns a line such as "step=20, checkpoints (ms), forward + recompute | 0: 1.23 + 1.20 | 1: 1.22
 * + 1.21".
 */
function formatSegments(step: number, times: readonly SegmentTimes[]): string {
  const parts = times.map(
    ({ segment, forwardMs, recomputeMs }) =>
      `${segment}: ${forwardMs.toFixed(2)} + ${recomputeMs.toFixed(2)}`,
  );
  return `step=${step}, checkpoints (ms), forward + recompute | ${parts.join(' | ')}`;
}

/**
 * A metric of a step for monitors. `of` returns null if the step has no value. Monitors plot it
 * over global samples.
 */
interface Metric {
  name: string;
  of(report: FinishedStep): number | null;
}

const TRAIN_LOSS: Metric = { name: 'Train/Samples/train_loss', of: ({ loss }) => loss };
const LR: Metric = { name: 'Train/Samples/lr', of: ({ lr }) => lr[0] ?? 0 };
const LOSS_SCALE: Metric = { name: 'Train/Samples/loss_scale', of: ({ lossScale }) => lossScale };

class MetricEvents implements StepObserver {
  constructor(
    private readonly monitor: Monitor,
    private readonly metrics: readonly Metric[],
  ) {}

  stepFinished(report: FinishedStep): void {
    const { samples: step } = report;
    const events = this.metrics.flatMap(({ name, of: metricOf }) => {
      const value = metricOf(report);
      return value === null ? [] : [{ name, value, step }];
    });
    this.monitor.write(events);
  }

  flush(): Promise<void> {
    return this.monitor.flush();
  }

  close(): void {
    this.monitor.close();
  }
}

/**
 * Writes "Train/Samples/elapsed_time_ms_forward" and similar events. backward_allreduce is the
 * reduction over ranks, which is 0 on one rank. backward_inner is the backward without it.
 */
class TimeEvents implements StepObserver {
  constructor(private readonly monitor: Monitor) {}

  stepTimed({ samples: step, times }: TimedStep): void {
    const { forward, backward, reduce } = times;
    const phases = {
      forward,
      backward,
      backward_inner: backward - reduce,
      backward_allreduce: reduce,
      step: times.step,
    };
    this.monitor.write(
      Object.entries(phases).map(([phase, value]) => ({
        name: `Train/Samples/elapsed_time_ms_${phase}`,
        value,
        step,
      })),
    );
  }
}

class ProgressLines implements StepObserver {
  constructor(private readonly console: ConsoleMonitor) {}

  stepFinished({ step, samples, skipped, lr, betas, loss }: FinishedStep): void {
    this.console.progress({ step, samples, skipped, lr, momentum: betas, loss });
  }
}

class TimeLines implements StepObserver {
  constructor(private readonly console: ConsoleMonitor) {}

  stepTimed({ step, times }: TimedStep): void {
    this.console.times(step, times);
  }
}

/**
 * Returns the observers for the monitors of the configuration and of the caller. When the observers
 * close, all monitors close. `opened` owns the monitors of the configuration from their creation.
 * Throws DS_IO if a folder is not writable.
 */
export function buildObservers(
  config: ResolvedConfig,
  ownMonitors: readonly Monitor[],
  opened: ReleaseStack,
): StepObserver[] {
  const { steps_per_print: every, wall_clock_breakdown: timed, fp16 } = config;
  const master = new MonitorMaster([...openMonitors(config, opened), ...ownMonitors]);
  const metrics = fp16.enabled ? [TRAIN_LOSS, LR, LOSS_SCALE] : [TRAIN_LOSS, LR];
  const observers: StepObserver[] = [];
  // TimeEvents gets times only with wall_clock_breakdown or recordPhases().
  if (master.enabled) observers.push(new TimeEvents(master), new MetricEvents(master, metrics));
  if (every) observers.push(new ProgressLines(new ConsoleMonitor({ every })));
  if (timed) observers.push(new TimeLines(new ConsoleMonitor({ every: every ?? 1 })));
  if (config.activation_checkpointing.profile) observers.push(new SegmentLines(every ?? 1));
  return observers;
}

function openMonitors(config: ResolvedConfig, opened: ReleaseStack): Monitor[] {
  const { tensorboard, csv_monitor: csv } = config;
  const monitors: Monitor[] = [];
  const open = (make: (at: LogFolder) => Monitor, section: ResolvedConfig['tensorboard']): void => {
    if (!section.enabled) return;
    const monitor = make({ outputPath: section.output_path, jobName: section.job_name });
    opened.defer(() => monitor.close());
    monitors.push(monitor);
  };
  open((at) => new TensorBoardMonitor(at), tensorboard);
  open((at) => new CsvMonitor(at), csv);
  return monitors;
}
