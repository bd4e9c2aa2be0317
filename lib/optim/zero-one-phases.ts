// What 0/1 Adam does at which update: a function of its number alone.

export interface ZeroOneIntervals {
  /** Updates of the first phase, in which the second moment changes. */
  varFreezeStep: number;
  /** Updates of the second moment after which they become half as frequent. */
  varUpdateScaler: number;
  /** Updates of the second phase after which ranks agree half as often. */
  localStepScaler: number;
  /** The most updates from one agreement to the next. */
  localStepClipper: number;
}

/**
 * "variance": gradients are summed, both moments change. "gradient": the ranks' gradients are
 * exchanged, the first moment changes. "local": each rank updates by itself. "agree": likewise, and
 * then all ranks have the same weights.
 */
export type ZeroOneStep = 'variance' | 'gradient' | 'local' | 'agree';

/** Where a count goes on from. */
interface State {
  step: number;
  varInterval: number;
  varUpdates: number;
  localInterval: number;
  localUpdates: number;
}

const START: State = {
  ...{ step: 0, varInterval: 1, varUpdates: 0, localInterval: 1, localUpdates: 0 },
};

/**
 * Counts from the last update that it was asked of, or from the first one where that came later.
 * Source: DeepSpeed's ZeroOneAdam.
 */
export class ZeroOnePhases {
  private state: State = START;
  private last: ZeroOneStep = 'variance';

  constructor(private readonly intervals: ZeroOneIntervals) {}

  /** Of update number `step`, from 1. */
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
