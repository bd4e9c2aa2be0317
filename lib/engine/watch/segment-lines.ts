// activation_checkpointing.profile: prints times of checkpointed segments.
import { type SegmentTimes, times as segmentTimes } from '../../tensor/recompute/index.js';
import type { FinishedStep, StepObserver } from './observer.js';

/** Prints at every N-th step: mean device milliseconds over the runs so far. */
export class SegmentLines implements StepObserver {
  constructor(private readonly every: number) {}

  stepFinished({ step }: FinishedStep): void {
    if (step % this.every !== 0) return;
    const times = segmentTimes();
    if (times.length > 0) process.stdout.write(`${segmentLine(step, times)}\n`);
  }
}

/** "step=20, checkpoints (ms), forward + recompute | 0: 1.23 + 1.20 | 1: 1.22 + 1.21" */
function segmentLine(step: number, times: readonly SegmentTimes[]): string {
  const parts = times.map(
    ({ segment, forwardMs, recomputeMs }) =>
      `${segment}: ${forwardMs.toFixed(2)} + ${recomputeMs.toFixed(2)}`,
  );
  return `step=${step}, checkpoints (ms), forward + recompute | ${parts.join(' | ')}`;
}
