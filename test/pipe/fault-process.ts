// One rank of a pipeline with a fault; reports its error.
import { type Distributed, initDistributed } from '../../lib/comm/index.js';
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
    | 'throws at once'
    | 'throws in backward'
    | 'throws in evaluation'
    | 'evaluates alone'
    | 'evaluates first'
    | 'more micro-batches'
    | 'more evaluated'
    | 'all throw'
    | 'short iterator'
    | 'no iterator'
    | 'no inputs'
    | 'gives nothing'
    | 'shapes'
    | 'dynamic shapes'
    | 'stage 2'
    | 'more stages'
    | 'other stages'
    | 'forward'
    | 'tied Muon';
  /** The rank with the fault. */
  rank: number;
  /** Ranks of the pipeline. Default: two. Further ranks are data ranks. */
  stages?: number;
  /** Whether the failed rank stays until the others have reported their errors. */
  stays?: boolean;
}

const [ROWS, WIDTH, MICROS] = [4, 8, 3];

/** A layer with a fault in its second micro-batch. */
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

function modelOf({ kind, stages }: Fault, isMine: boolean): PipelineModule {
  const act = (call: number): void => {
    if (isMine && call === 0 && kind === 'throws at once') throw new Error('a layer of mine');
    if (!isMine || call !== 1) return;
    if (kind === 'throws in evaluation') throw new Error('a layer of mine');
    if (kind === 'dies in forward') process.kill(process.pid, 'SIGKILL');
    if (kind === 'throws in forward') throw new Error('a layer of mine');
  };
  const forgetful = [(): Tensor => undefined as never];
  const layers = Array.from({ length: 2 * ((stages ?? 2) - 1) }, () => new Treacherous(act));
  for (const layer of kind === 'dies in backward' && isMine ? layers : []) {
    layer.registerFullBackwardHook(() => void process.kill(process.pid, 'SIGKILL'));
  }
  for (const layer of kind === 'throws in backward' && isMine ? layers : []) {
    layer.registerFullBackwardHook(() => {
      throw new Error('a gradient of mine');
    });
  }
  const square = {
    forward: (m: nn.Module, x: unknown) => linear(x as Tensor, (m as nn.Linear).weight),
  };
  const tie = () => new TiedLayerSpec('tie', nn.Linear, square, WIDTH, WIDTH);
  const tied = [tie(), new nn.MultiheadAttention(WIDTH, 2), tie()];
  const last = kind === 'gives nothing' ? forgetful : [];
  const whole = kind === 'tied Muon' ? tied : [...layers, ...last];
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
    ...(kind === 'tied Muon' && { sparse_attention: { mode: 'fixed' } }),
  } as DsConfig;
}

const isSparse = (model: nn.Module): boolean =>
  [...model.namedModules()].some(
    ([, one]) => one instanceof nn.MultiheadAttention && one.sparsity !== null,
  );

function* batches({ kind }: Fault, isMine: boolean) {
  for (let i = 0; !(kind === 'short iterator' && isMine && i === 2); ++i) {
    const rows = kind.endsWith('shapes') && i % MICROS === 1 ? ROWS / 2 : ROWS;
    const values = Float32Array.from({ length: rows * WIDTH }, (_, j) => Math.sin(i + j));
    const tensor = () => Tensor.from(values, { shape: [rows, WIDTH] });
    yield kind === 'no inputs' && isMine ? [[1, 2], tensor()] : [tensor(), tensor()];
  }
}

const unreadable: Iterator<unknown> = {
  next: () => {
    throw new Error('a file of all');
  },
};

/** Waits until all ranks have reported their errors. */
async function meet({ rank, worldSize, store, timeout }: Distributed): Promise<void> {
  await store?.set(`fault/${rank}`, 'told');
  for (let other = 0; other < worldSize; ++other) await store?.get(`fault/${other}`, timeout);
  if (rank === 0) {
    for (let other = 1; other < worldSize; ++other)
      await store?.get(`fault/left/${other}`, timeout);
  } else await store?.set(`fault/left/${rank}`, 'gone');
}

async function main(fault: Fault): Promise<void> {
  const job = await initDistributed({ device: 'cpu', mesh: { pp: fault.stages ?? 2 } });
  const isMine = job.rank === fault.rank;
  const model = modelOf(fault, isMine);
  let report: string;
  try {
    const { engine } = await initialize({ model, config: configOf(fault) });
    if (fault.kind === 'forward') engine.forward();
    const options = batches(fault, isMine);
    const data = fault.kind === 'no iterator' && isMine ? ([options] as never) : options;
    if (fault.kind === 'evaluates alone' && isMine) engine.eval();
    if (fault.kind === 'throws in evaluation') await engine.evalBatch(data);
    if (fault.kind === 'evaluates first' && isMine) await engine.evalBatch(data);
    if (fault.kind === 'more micro-batches' && isMine) engine.setTrainBatchSize(2 * ROWS * MICROS);
    if (fault.kind === 'more evaluated') await engine.evalBatch(data, isMine ? 2 : 1);
    if (fault.kind === 'all throw') await engine.trainBatch(unreadable).catch(() => {});
    for (let step = 0; step < 3; ++step) await engine.trainBatch(data);
    report = `trained ${engine.globalSteps}`;
    engine.destroy();
    await job.destroy();
  } catch (error) {
    const { code = (error as Error).name, message } = error as DsError;
    report = `${error instanceof DsError ? code : 'Error'} ${message}`;
    if (isSparse(model)) report += ' The model is left sparse.';
    if (fault.stays) await meet(job);
    // The failed rank leaves, and the others get an error.
    job.store?.close();
  }
  console.log(JSON.stringify(report));
}

void main(JSON.parse(process.argv[2] ?? '') as Fault);
