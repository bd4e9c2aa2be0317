// ZeroOnePhases: the kind of each update of 0/1 Adam, by its number.

export interface ZeroOneIntervals {
  /** Updates of the first phase, which changes the second moment. */
  varFreezeStep: number;
  /** Updates of the second moment before their interval doubles. */
  varUpdateScaler: number;
  /** Updates of the second phase before the interval of synchronization doubles. */
  localStepScaler: number;
  /** Maximum interval of synchronization in updates. */
  localStepClipper: number;
}

/**
 * "variance": gradients are summed, and both moments change. "gradient": ranks exchange gradients,
 * and the first moment changes. "local": each rank updates without an exchange. "agree": a local
 * update, then all ranks get the same weights.
 */
type ZeroOneStep = 'variance' | 'gradient' | 'local' | 'agree';

/** Counters after an update. */
interface State {
  step: number;
  varInterval: number;
  varUpdates: number;
  localInterval: number;
  localUpdates: number;
}

const START: State = {
  step: 0,
  varInterval: 1,
  varUpdates: 0,
  localInterval: 1,
  localUpdates: 0,
};

/**
 * Counts from the last requested update, or from the first one if the request is earlier. Source:
 * DeepSpeed's ZeroOneAdam.
 */
export class ZeroOnePhases {
  private state: State = START;
  private last: ZeroOneStep = 'variance';

  constructor(private readonly intervals: ZeroOneIntervals) {}

  /** Returns the kind of update `step`, from 1. */
  stepOf(step: number): ZeroOneStep {
    if (step < this.state.step) this.state = START;
    while (this.state.step < step) this.advance();
    return this.last;
  }

  private advance(): void {
    const { varFreezeStep } = this.intervals;
    const step = this.state.step + 1;
    this.state = { ...this.state, step };
    if (step <= varFreezeStep) this.first(this.state);
    else this.second(this.state);
  }

  private first(state: State): void {
    this.last = state.step % state.varInterval === 0 ? 'variance' : 'gradient';
    if (this.last === 'gradient' || ++state.varUpdates < this.intervals.varUpdateScaler) return;
    state.varUpdates = 0;
    state.varInterval *= 2;
  }

  private second(state: State): void {
    const { localStepScaler, localStepClipper } = this.intervals;
    this.last = state.step % state.localInterval === 0 ? 'agree' : 'local';
    if (++state.localUpdates < localStepScaler) return;
    state.localUpdates = 0;
    state.localInterval = Math.min(localStepClipper, state.localInterval * 2);
  }
}
