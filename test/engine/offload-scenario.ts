// A short training that moves the states of its engine to the host and back between calls.
import { createHash } from 'node:crypto';
import type { Distributed } from '../../lib/comm/index.js';
import {
  type DsError,
  type Engine,
  initialize,
  nn,
  type OffloadState,
  type OffloadStatesOptions,
  seed,
  Tensor,
  zero,
} from '../../lib/index.js';

/** One training. */
export interface OffloadRun {
  config: object;
  /** When states are away; null: never. */
  moves: 'between' | 'backward' | 'micro' | null;
  include?: OffloadState[];
  options?: Omit<OffloadStatesOptions, 'include'>;
}

/** What a rank reports of a training. */
export interface OffloadReport {
  /** Hash of masters, state and weights. */
  bits: string;
  losses: number[];
  /** Bytes that offloadStates() reports, and bytes of the device counter, by call. */
  moved: Record<string, number>[];
  freed: number[];
  /** Bytes of the device counter that reloadStates() takes. */
  taken: number[];
}

class Net extends nn.Module {
  readonly first = new nn.Linear(64, 96);
  readonly second = new nn.Linear(96, 64);
  readonly fixed = new nn.Linear(64, 8);

  constructor() {
    super();
    this.fixed.weight.requiresGrad = false;
  }

  override forward(input: Tensor): Tensor {
    const middle = this.first.call(input.to(this.fixed.weight.dtype)).square();
    return this.fixed.call(this.second.call(middle)).to('f32').square().mean();
  }
}

const STEPS = 3;

/** Trains; the same run without moves has the same bits. */
export async function trainOffloaded(
  { config, moves, include, options }: OffloadRun,
  job?: Distributed,
): Promise<OffloadReport> {
  seed(3);
  const source = {
    model: new Net(),
    config: config as never,
    ...(job ? { distributed: job } : {}),
  };
  const { engine } = await initialize(job ? source : { ...source, device: 'cpu' });
  const report: OffloadReport = { bits: '', losses: [], moved: [], freed: [], taken: [] };
  const inUse = (): number => engine.device.memory.inUse;
  const away = (body: () => void): void => {
    engine.synchronize();
    const before = inUse();
    report.moved.push(engine.offloadStates({ ...(include && { include }), ...options }));
    const between = inUse();
    body();
    const then = inUse();
    engine.reloadStates();
    report.freed.push(before - between);
    report.taken.push(inUse() - then);
  };
  const rank = job?.rank ?? 0;
  const micros = engine.gradientAccumulationSteps();
  for (let step = 0; step < STEPS; ++step) {
    if (moves === 'between') away(() => {});
    for (let micro = 0; micro < micros; ++micro) {
      const values = Float32Array.from({ length: 2 * 64 }, (_, i) =>
        Math.sin(i + 7 * rank + micro),
      );
      const input = Tensor.from(values, { shape: [2, 64], device: engine.device });
      const pass = (): void => engine.backward(engine.forward<Tensor>(input));
      if (moves === 'backward') away(pass);
      else pass();
      if (moves === 'micro') away(() => {});
      engine.step();
      input.dispose();
    }
    report.losses.push(engine.getGlobalLoss() as number);
  }
  report.bits = bitsOf(engine);
  engine.destroy();
  return report;
}

function bitsOf(engine: Engine): string {
  const hash = createHash('sha256');
  const states = ['fp32', 'exp_avg', 'exp_avg_sq'];
  for (const [name, parameter] of engine.module.namedParameters()) {
    for (const state of states) {
      const fullTensor = zero.safeGetFullOptimizerState(parameter as nn.Parameter, state);
      if (fullTensor) hash.update(`${name} ${state} ${fullTensor.toArray()}`);
      fullTensor?.dispose();
    }
    engine.withFullWeights(() => hash.update(`${name} ${parameter.to('f32').toArray()}`));
  }
  return hash.digest('hex');
}

/** The code and the message of the error of `body`. */
export async function errorOf(body: () => unknown): Promise<string> {
  try {
    await body();
  } catch (error) {
    return `${(error as DsError).code} ${(error as Error).message}`;
  }
  return 'none';
}
