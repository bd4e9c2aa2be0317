// One rank that leaves stage and offload to the plan, with its own memory limit, and reports the
// result.
import { initDistributed } from '../../lib/comm/index.js';
import { type DsConfig, DsError, initialize, nn, seed, Tensor } from '../../lib/index.js';
import { cpu } from '../../lib/runtime/device.js';

export interface PlannedRank {
  zero: DsConfig['zero_optimization'];
  /** Memory limit of the device of this rank, in bytes. */
  cap: number;
}

export interface PlannedJob {
  /** By attempt, then by rank. */
  attempts: [PlannedRank, PlannedRank][];
}

/** The result of each attempt. */
export interface PlannedReport {
  stages: (number | null)[];
  losses: number[][];
  lines: string[];
  errors: (string | null)[];
}

const WIDTH = 512;

async function attempt({ zero, cap }: PlannedRank, report: PlannedReport): Promise<void> {
  seed(5);
  const device = cpu();
  const model = new nn.Linear(WIDTH, WIDTH);
  const config: DsConfig = {
    train_micro_batch_size_per_gpu: 2,
    optimizer: { type: 'AdamW', params: { lr: 1e-2 } },
    zero_optimization: zero,
  };
  device.trim();
  device.setMemoryCap(cap);
  const built = initialize({ model, config }).finally(() => device.setMemoryCap(0));
  const { engine } = await built;
  const x = Tensor.from([Array.from({ length: WIDTH }, (_, i) => i / WIDTH)], { device }).keep();
  const losses: number[] = [];
  for (let step = 0; step < 3; ++step) {
    const loss = engine.forward<Tensor>(x).square().mean();
    engine.backward(loss);
    engine.step();
    losses.push(loss.item());
    loss.dispose();
  }
  report.stages.push(engine.config.zero_optimization.stage);
  report.losses.push(losses);
  engine.destroy();
  x.dispose();
  for (const parameter of model.parameters()) parameter.dispose();
}

async function main({ attempts }: PlannedJob): Promise<void> {
  const job = await initDistributed({ device: 'cpu' });
  const report: PlannedReport = { stages: [], losses: [], lines: [], errors: [] };
  const { write } = process.stdout;
  process.stdout.write = (text: string | Uint8Array): boolean => {
    report.lines.push(String(text));
    return true;
  };
  for (const ranks of attempts) {
    const error = await attempt(ranks[job.rank] as PlannedRank, report).then(
      () => null,
      (thrown: unknown) => {
        if (!(thrown instanceof DsError)) throw thrown;
        report.stages.push(null);
        report.losses.push([]);
        return `${thrown.code} ${thrown.message}`;
      },
    );
    report.errors.push(error);
  }
  process.stdout.write = write;
  console.log(JSON.stringify(report));
  await job.destroy();
}

void main(JSON.parse(process.argv[2] ?? '') as PlannedJob);
