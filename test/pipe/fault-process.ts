// One rank of a pipeline in which something goes wrong: reports what it was told.
import { initDistributed } from '../../lib/comm/index.js';
import {
  type DsConfig,
  DsError,
  initialize,
  linear,
  nn,
  PipelineModule,
  Tensor,
  TiedLayerSpec,
} from '../../lib/index.js';

export interface Fault {
  kind:
    | 'dies in forward'
    | 'dies in backward'
    | 'throws in forward'
    | 'short iterator'
    | 'shapes'
    | 'dynamic shapes'
    | 'stage 2'
    | 'more stages'
    | 'other stages'
    | 'forward'
    | 'tied Muon';
  /** Whose fault it is. */
  rank: number;
}

const [ROWS, WIDTH, MICROS] = [4, 8, 3];

/** A layer that does something else in its second micro-batch. */
class Treacherous extends nn.Module {
  readonly inner = new nn.Linear(WIDTH, WIDTH);
  private calls = 0;

  constructor(private readonly act: (call: number, x: Tensor) => void) {
    super();
  }

  override forward(x: Tensor): Tensor {
    this.act(this.calls++, x);
    return this.inner.call(x);
  }
}

function modelOf({ kind }: Fault, isMine: boolean): PipelineModule {
  const act = (call: number): void => {
    if (!isMine || call !== 1) return;
    if (kind === 'dies in forward') process.kill(process.pid, 'SIGKILL');
    if (kind === 'throws in forward') throw new Error('a layer of mine');
  };
  const layers = [new Treacherous(act), new Treacherous(act)];
  for (const layer of kind === 'dies in backward' && isMine ? layers : []) {
    layer.registerFullBackwardHook(() => void process.kill(process.pid, 'SIGKILL'));
  }
  const square = {
    forward: (m: nn.Module, x: unknown) => linear(x as Tensor, (m as nn.Linear).weight),
  };
  const tie = () => new TiedLayerSpec('tie', nn.Linear, square, WIDTH, WIDTH);
  const whole = kind === 'tied Muon' ? [tie(), tie()] : layers;
  return new PipelineModule({
    layers: kind === 'more stages' ? whole.slice(1) : whole,
    lossFn: (outputs: Tensor, labels: Tensor) => outputs.sub(labels).pow(2).mean(),
    dynamicShape: kind === 'dynamic shapes',
  });
}

function configOf({ kind }: Fault): DsConfig {
  const name = kind === 'tied Muon' ? 'Muon' : 'AdamW';
  return {
    train_micro_batch_size_per_gpu: ROWS,
    gradient_accumulation_steps: MICROS,
    optimizer: { type: name, params: { lr: 0.01 } },
    zero_optimization: { stage: kind === 'stage 2' ? 2 : 0 },
    pipeline: kind === 'other stages' ? { stages: 3 } : {},
  } as DsConfig;
}

function* batches({ kind }: Fault, isMine: boolean) {
  for (let i = 0; !(kind === 'short iterator' && isMine && i === 2); ++i) {
    const rows = kind.endsWith('shapes') && i % MICROS === 1 ? ROWS / 2 : ROWS;
    const values = Float32Array.from({ length: rows * WIDTH }, (_, j) => Math.sin(i + j));
    const tensor = () => Tensor.from(values, { shape: [rows, WIDTH] });
    yield [tensor(), tensor()];
  }
}

async function main(fault: Fault): Promise<void> {
  const job = await initDistributed({ device: 'cpu', mesh: { pp: 2 } });
  const isMine = job.rank === fault.rank;
  let report: string;
  try {
    const { engine } = await initialize({ model: modelOf(fault, isMine), config: configOf(fault) });
    if (fault.kind === 'forward') engine.forward();
    const data = batches(fault, isMine);
    for (let step = 0; step < 3; ++step) await engine.trainBatch(data);
    report = `trained ${engine.globalSteps}`;
    engine.destroy();
    await job.destroy();
  } catch (error) {
    const { code = (error as Error).name, message } = error as DsError;
    report = `${error instanceof DsError ? code : 'Error'} ${message}`;
    // Who has failed leaves; the others are told.
    job.store?.close();
  }
  console.log(JSON.stringify(report));
}

void main(JSON.parse(process.argv[2] ?? '') as Fault);
