// One rank: its first initialize() fails while the first unit is filled, its second one trains. It
// reports both.
import { comm, type DsConfig, initialize, type Tensor } from '../../lib/index.js';
import { seed } from '../../lib/tensor/index.js';
import { quiet } from '../support/quiet.js';
import { Fragile } from './fragile-model.js';

export interface FailedJob {
  device: string;
  config: DsConfig;
  /** Whether to make a first attempt, which fails. */
  fails: boolean;
}

export interface FailedReport {
  message: string;
  /** Whether the comms logger is still the one from before the attempt. */
  sameLogger: boolean;
  /** Native buffers left after engine and model are freed. */
  buffers: number;
  values: number[][];
  /** The error of initialize() after the engine was destroyed; '' without an error. */
  afterwards: string;
}

async function main({ device: kind, config, fails }: FailedJob): Promise<void> {
  const job = await comm.initDistributed(kind === 'cpu' ? { device: kind } : {});
  const { device, logger } = job.world;
  await quiet();
  const { liveBuffers: before } = device.memory;
  seed(5);
  const model = new Fragile();
  let message = '';
  if (fails) {
    model.breaks = 'values';
    const logged = { ...config, comms_logger: { enabled: true } };
    await initialize({ model, config: logged, distributed: job }).catch((error: Error) => {
      message = error.message;
    });
    model.breaks = null;
  }
  const sameLogger = job.world.logger === logger;
  const { engine } = await initialize({ model, config, distributed: job });
  const x = Fragile.input(device);
  for (let step = 0; step < 3; ++step) {
    engine.backward(engine.forward<Tensor>(x));
    engine.step();
  }
  const values = engine.withFullWeights(() =>
    model.parameters().map((parameter) => parameter.toArray()),
  );
  engine.destroy();
  const again = initialize({ model, config, distributed: job });
  const afterwards = await again.then(
    (next) => {
      next.engine.destroy();
      return '';
    },
    ({ code }: { code: string }) => code,
  );
  x.dispose();
  model.dispose();
  const buffers = device.memory.liveBuffers - before;
  await job.destroy();
  const report: FailedReport = { message, sameLogger, buffers, values, afterwards };
  console.log(JSON.stringify(report));
}

void main(JSON.parse(process.argv[2] ?? '') as FailedJob);
