// RunRecorder: records the steps of a run for the watch page: metrics, phases, memory and times of
// ranks.
import type { EventLog } from '../../watch/index.js';
import { type MemoryOwners, measureMemory } from './memory-breakdown.js';
import type { FinishedStep, PhaseTimes, StepObserver, TimedStep } from './phase-timer.js';

/** Milliseconds between two records of memory and of rank times. */
const SLOW_MS = 1000;
/** Milliseconds between two records of phases. A record is the mean of its steps. */
const PHASES_MS = 100;

/**
 * Writes the log of the watch page. It reads only values that are on the host, so no step waits.
 */
export class RunRecorder implements StepObserver {
  private last: { time: number; samples: number } | null = null;
  private memoryAt = Number.NEGATIVE_INFINITY;
  private ranksAt = Number.NEGATIVE_INFINITY;
  private phasesAt = Number.NEGATIVE_INFINITY;
  private phases: { sum: PhaseTimes; steps: number; step: number } | null = null;
  /** Called when the engine is destroyed. */
  onClose: (() => void) | null = null;

  constructor(
    private readonly log: EventLog,
    private readonly owners: MemoryOwners,
    /** Whether to record the loss scale. It is recorded for fp16 only. */
    private readonly hasScale: boolean,
  ) {}

  stepFinished({ step, samples, skipped, loss, norm, lr, lossScale, busy }: FinishedStep): void {
    const time = performance.now();
    const values: Record<string, number> = { grad_norm: norm };
    if (loss !== null) values.loss = loss;
    if (lr[0] !== undefined) values.lr = lr[0];
    if (this.hasScale) values.loss_scale = lossScale;
    if (this.hasScale || skipped > 0) values.skipped = skipped;
    if (this.last && time > this.last.time) {
      values.step_ms = time - this.last.time;
      values.samples_per_second = (1000 * (samples - this.last.samples)) / values.step_ms;
    }
    this.last = { time, samples };
    this.log.write({ e: 'row', track: 'train', step, values });
    if (time - this.memoryAt >= SLOW_MS) {
      this.memoryAt = time;
      this.log.write({ e: 'row', track: 'memory', step, values: this.memory() });
    }
    const isShared = busy !== null && busy.length > 1 && busy.some((value) => value > 0);
    if (!isShared || time - this.ranksAt < SLOW_MS) return;
    this.ranksAt = time;
    this.log.write({ e: 'ranks', step, busy });
  }

  stepTimed({ step, times }: TimedStep): void {
    const { sum, steps } = this.phases ?? { sum: null, steps: 0 };
    const { forward, backward, reduce, step: update } = times;
    this.phases = {
      sum: {
        forward: (sum?.forward ?? 0) + forward,
        backward: (sum?.backward ?? 0) + backward,
        reduce: (sum?.reduce ?? 0) + reduce,
        step: (sum?.step ?? 0) + update,
      },
      steps: steps + 1,
      step,
    };
    if (performance.now() - this.phasesAt >= PHASES_MS) this.finish();
  }

  /** Excludes the time until the next step from step times, for example during an evaluation. */
  pause(): void {
    this.last = null;
  }

  close(): void {
    this.onClose?.();
  }

  /** Writes the phases since the last record. */
  finish(): void {
    if (!this.phases) return;
    const { sum, steps, step } = this.phases;
    const values = Object.fromEntries(
      Object.entries(sum).map(([phase, ms]) => [phase, ms / steps]),
    );
    this.phases = null;
    this.phasesAt = performance.now();
    this.log.write({ e: 'row', track: 'phases', step, values });
  }

  private memory(): Record<string, number> {
    const { device, host } = measureMemory(this.owners);
    return {
      device_peak: device.peak,
      device_weights: device.weights,
      device_gradients: device.gradients,
      device_optimizer: device.optimizer,
      device_other: Math.max(0, device.other),
      host_pinned: host.pinned,
      host_resident: host.resident,
      disk: this.owners.state.bytes.disk,
    };
  }
}
