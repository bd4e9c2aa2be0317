// Tests the plan against measurements on GPUs, also with adapters: bytes within 5 %, step times
// within 15 %.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { GPT2, Llama } from '../../lib/models/index.js';
import { addLora, quantizeUnmade } from '../../lib/peft/index.js';
import {
  type Cluster,
  H200,
  plainSetup,
  predictMemory,
  predictStepTime,
  type Setup,
  sizesOf,
  totalBytes,
} from '../../lib/plan/index.js';

const GIB = 2 ** 30;
const [BYTES, SECONDS] = [0.05, 0.15];

type Path = (string | number)[];

/** A number of bench/results, by file and path. */
function numberOf(file: string, path: Readonly<Path>): number {
  const text = readFileSync(join(__dirname, '../../bench/results', `${file}.json`), 'utf8');
  let value: unknown = JSON.parse(text);
  for (const key of path) value = (value as Record<string, unknown>)[key];
  return value as number;
}
const measuredNumber = (file: string, ...path: Path): number => numberOf(file, ['result', ...path]);

const sizes = (name: string) => sizesOf(new GPT2(GPT2.config(name)));
const kept = { microBatch: 8, checkpointing: true } as const;
const offload = { ...kept, stage: 2, optimizer: 'cpu' } as const;
/** Measured when updates of weights in host memory followed the step decision. */
const weightsToo = { ...offload, stage: 3, weights: 'cpu', speculates: false } as const;
const after13B = { ...offload, microBatch: 6, speculates: false, gpuShare: 0.0612 } as const;

/** Sections of offload-h200.json, each of one run, and the rows with the resulting shares. */
const inHalves = 'masters in halves that are tried out';
const staying = "weights of the GPU's share stay there";
const narrow = { bf16States: true, stateBytes: 4 } as const;
const shared10B = { ...offload, microBatch: 10, speculates: false, gpuShare: 0.334 } as const;
const weightsTriedOut = { ...weightsToo, speculates: true } as const;
type SharedRow = readonly [section: string, row: string, model: string, setup: Partial<Setup>];
const sharedRows: readonly SharedRow[] = [
  [inHalves, 'clipping rare', '1558M', { ...offload, gpuShare: 0.447 }],
  [inHalves, 'clipping rare, share 0', '1558M', offload],
  [
    inHalves,
    'stage 3, weights in host memory, too, after the verdict',
    '1558M',
    { ...weightsToo, gpuShare: 0.309 },
  ],
  [inHalves, '10B, clip 1.0, pool capped at 32 GiB', '10B', shared10B],
  [staying, 'clipping rare', '1558M', { ...offload, gpuShare: 0.507 }],
  [
    staying,
    'stage 3, weights in host memory, too',
    '1558M',
    { ...weightsTriedOut, gpuShare: 0.507 },
  ],
  [staying, 'stage 3, weights in host memory, too, share 0', '1558M', weightsTriedOut],
  ['moments in bf16', 'clipping rare', '1558M', { ...offload, ...narrow, gpuShare: 0.664 }],
];
/**
 * Measured on a host with slower memory than the plan's: only bytes and the saving by bf16 moments
 * count.
 */
const slow = '10B with moments in bf16';
const slowRow: SharedRow = [
  slow,
  '10B, every step clipped, pool capped at 32 GiB, after the verdict',
  '10B',
  { ...shared10B, ...narrow },
];
const sharedNumber = (section: string, row: string, ...path: string[]): number =>
  numberOf('offload-h200', [section, row, ...path]);

type Row = [name: string, model: string, setup: Partial<Setup>, gib: () => number];

const deviceRows: Row[] = [
  [
    '124M',
    '124M',
    { microBatch: 16 },
    () => measuredNumber('redesign-1558M', '124M_B16_after', 'peak_device_gib'),
  ],
  [
    '1558M',
    '1558M',
    { microBatch: 8 },
    () => measuredNumber('redesign-1558M', 'plain_after', 'peak_device_gib'),
  ],
  [
    'checkpointing',
    '1558M',
    kept,
    () => measuredNumber('redesign-1558M', 'checkpointing_after', 'peak_device_gib'),
  ],
  [
    'offload',
    '1558M',
    offload,
    () => measuredNumber('redesign-1558M', 'offload_after', 'peak_device_gib'),
  ],
  [
    'accumulation',
    '1558M',
    { ...offload, accumulation: 4 },
    () => measuredNumber('train-1558M-offload-accum4', 'peak_device_gib'),
  ],
  ...(
    [
      [1, 0.75],
      [2, 0.5],
      [3, 0.25],
    ] as const
  ).map(
    ([row, ratio]): Row => [
      `ratio ${ratio}`,
      '1558M',
      { ...offload, ratio },
      () => measuredNumber('train-1558M-offload-ratio', row, 'peak_device_gib'),
    ],
  ),
  [
    'weights too',
    '1558M',
    weightsToo,
    () => measuredNumber('train-1558M-offload-weights', 'peak_device_gib'),
  ],
  [
    '10B',
    '10B',
    { ...offload, microBatch: 10 },
    () => measuredNumber('train-10B-offload-noclip', 'peak_device_gib'),
  ],
  [
    '10B, weights too',
    '10B',
    { ...weightsToo, microBatch: 10 },
    () => measuredNumber('train-10B-offload-weights', 'peak_device_gib'),
  ],
  ['13B', '13B', after13B, () => measuredNumber('train-13B-offload', 'peak_device_gib')],
  ...(
    [
      [0, 0, false],
      [2, 1, false],
      [4, 2, false],
      [5, 2, true],
      [7, 3, false],
      [8, 3, true],
    ] as const
  ).map(
    ([row, stage, overlap]): Row => [
      `stage ${stage} on 2, overlap ${overlap}`,
      '1558M',
      { ...kept, stage, ranks: 2, overlap },
      () => measuredNumber('zero-1558M-2gpu', row, 'peak_device_gib'),
    ],
  ),
  [
    'stage 3 on 4',
    '1558M',
    { ...kept, stage: 3, ranks: 4 },
    () => measuredNumber('zero-1558M-weak-scaling', 0, 'peak_device_gib'),
  ],
];

for (const [section, row, model, setup] of [...sharedRows, slowRow]) {
  deviceRows.push([
    `${row}, ${section}`,
    model,
    setup,
    () => sharedNumber(section, row, 'peak_device_gib'),
  ]);
}

test.each(deviceRows)('peak of the device: %s', (_, model, setup, gib) => {
  const got = totalBytes(predictMemory(sizes(model), { ...plainSetup, ...setup }).device) / GIB;
  expect(Math.abs(got / gib() - 1)).toBeLessThan(BYTES);
});

/** Measured with whole master weights; split masters, where one half is the weight, take less. */
const withoutHalves = (file: string, ranks: number): number => {
  const saved = (1.875 * sizes('1558M').parameters) / ranks / GIB;
  return measuredNumber(file, 'peak_host_rss_gib') - saved;
};

const hostRows: Row[] = [
  ['offload', '1558M', offload, () => measuredNumber('train-1558M-offload', 'peak_host_rss_gib')],
  [
    'ratio 0.5',
    '1558M',
    { ...offload, ratio: 0.5 },
    () => measuredNumber('train-1558M-offload-ratio', 2, 'peak_host_rss_gib'),
  ],
  [
    'after the verdict',
    '1558M',
    { ...offload, speculates: false },
    () => withoutHalves('train-1558M-offload-deferred', 1),
  ],
  ['weights too', '1558M', weightsToo, () => withoutHalves('train-1558M-offload-weights', 1)],
  [
    'on 2',
    '1558M',
    { ...weightsToo, ranks: 2 },
    () => withoutHalves('zero-1558M-2gpu-offload-weights', 2),
  ],
  [
    '10B',
    '10B',
    { ...offload, microBatch: 10 },
    () => measuredNumber('train-10B-offload-noclip', 'peak_host_rss_gib'),
  ],
  [
    '10B, weights too',
    '10B',
    { ...weightsToo, microBatch: 10 },
    () => measuredNumber('train-10B-offload-weights', 'peak_host_rss_gib'),
  ],
  ['13B', '13B', after13B, () => measuredNumber('train-13B-offload', 'peak_host_rss_gib')],
];

for (const [section, row, model, setup] of [...sharedRows, slowRow]) {
  hostRows.push([
    `${row}, ${section}`,
    model,
    setup,
    () => sharedNumber(section, row, 'peak_host_rss_gib'),
  ]);
}

test.each(hostRows)('peak of host memory: %s', (_, model, setup, gib) => {
  const got = totalBytes(predictMemory(sizes(model), { ...plainSetup, ...setup }).host) / GIB;
  expect(Math.abs(got / gib() - 1)).toBeLessThan(BYTES);
});

const machine = (devicesPerNode: number, coresPerNode: number): Cluster => ({
  nodes: 1,
  devicesPerNode,
  coresPerNode,
  nodeLink: 50e9,
});

type TimeRow = [name: string, model: string, setup: Partial<Setup>, at: Cluster, ms: () => number];

const timeRows: TimeRow[] = [
  [
    '124M',
    '124M',
    { microBatch: 16 },
    machine(1, 16),
    () => measuredNumber('redesign-1558M', '124M_B16_after', 'step_ms'),
  ],
  [
    '1558M',
    '1558M',
    { microBatch: 8 },
    machine(1, 16),
    () => measuredNumber('redesign-1558M', 'plain_after', 'step_ms'),
  ],
  [
    'checkpointing',
    '1558M',
    kept,
    machine(1, 16),
    () => measuredNumber('redesign-1558M', 'checkpointing_after', 'step_ms'),
  ],
  [
    'offload',
    '1558M',
    offload,
    machine(1, 16),
    () => measuredNumber('redesign-1558M', 'offload_after', 'step_ms'),
  ],
  [
    'after the verdict',
    '1558M',
    { ...offload, speculates: false },
    machine(1, 16),
    () => measuredNumber('train-1558M-offload-deferred', 'step_ms', 'median'),
  ],
  [
    'accumulation',
    '1558M',
    { ...offload, accumulation: 4 },
    machine(1, 16),
    () => measuredNumber('train-1558M-offload-accum4', 'step_ms', 'median'),
  ],
  [
    'ratio 0.75',
    '1558M',
    { ...offload, ratio: 0.75 },
    machine(1, 16),
    () => measuredNumber('train-1558M-offload-ratio', 1, 'step_ms'),
  ],
  [
    'ratio 0.5',
    '1558M',
    { ...offload, ratio: 0.5 },
    machine(1, 16),
    () => measuredNumber('train-1558M-offload-ratio', 2, 'step_ms'),
  ],
  [
    '10B',
    '10B',
    { ...offload, microBatch: 10 },
    machine(1, 32),
    () => measuredNumber('train-10B-offload-noclip', 'step_ms', 'median'),
  ],
  ...(
    [
      [1, 0],
      [5, 2],
      [8, 3],
    ] as const
  ).map(
    ([row, stage]): TimeRow => [
      `stage ${stage} on 2`,
      '1558M',
      { ...kept, stage, ranks: 2 },
      machine(2, 32),
      () => measuredNumber('zero-1558M-2gpu', row, 'step_ms'),
    ],
  ),
];

timeRows.push(
  [
    'weights too',
    '1558M',
    weightsToo,
    machine(1, 16),
    () => measuredNumber('train-1558M-offload-weights', 'step_ms', 'median'),
  ],
  [
    'weights too on 2',
    '1558M',
    { ...weightsToo, ranks: 2 },
    machine(2, 32),
    () => measuredNumber('zero-1558M-2gpu-offload-weights', 'step_ms', 'median'),
  ],
);

for (const [section, row, model, setup] of sharedRows) {
  const ms = (): number => sharedNumber(section, row, 'step_ms', 'median');
  timeRows.push([`${row}, ${section}`, model, setup, machine(1, 16), ms]);
}

test('weights in host memory are copied for each micro-batch, even a small one', () => {
  const setup = { ...plainSetup, ...weightsToo, microBatch: 1, accumulation: 8 };
  const model = sizes('1558M');
  const { step } = predictStepTime(model, setup, H200, machine(1, 16));
  const once = (2 * model.parameters) / H200.pcie;
  expect(step).toBeGreaterThan(8 * once);
  expect(step).toBeLessThan(8 * 2 * once + 0.5);
  const { step: whole } = predictStepTime(
    model,
    { ...setup, weights: 'device' },
    H200,
    machine(1, 16),
  );
  expect(whole).toBeLessThan(8 * once);
});

test.each([
  ['the device', {}, 20 / 28],
  ['host threads', offload, 22 / 30],
  ['host threads after the step decision', { ...offload, speculates: false }, 20 / 28],
] as const)('of moments in bf16 %s moves half: 8 bytes of an update less', (_, own, share) => {
  const updateOf = (setup: Partial<Setup>): number =>
    predictStepTime(sizes('1558M'), { ...plainSetup, ...own, ...setup }, H200, machine(1, 4))
      .update;
  const narrow = updateOf({ bf16States: true, stateBytes: 4 });
  expect(narrow / updateOf({})).toBeCloseTo(share, 6);
});

test('moments in bf16 save as much of a step of 10B as they did', () => {
  const ms = (row: string): number => sharedNumber(slow, row, 'step_ms', 'median');
  const planBytes = (setup: Partial<Setup>): number =>
    predictStepTime(sizes('10B'), { ...plainSetup, ...setup }, H200, machine(1, 16)).step;
  const [, row, , setup] = slowRow;
  const got = planBytes(setup) / planBytes(shared10B);
  expect(Math.abs(got / (ms(row) / ms('the same, moments in f32')) - 1)).toBeLessThan(BYTES);
});

/** The rows were measured when attention ran on mma.sync, at the rates of that time. */
const ON_MMA_SYNC = {
  ...H200,
  attention: [{ headDim: 64, forward: 185e12, backward: 150e12 }],
};

test.each(timeRows)('step time: %s', (_, model, setup, at, ms) => {
  const got =
    1000 * predictStepTime(sizes(model), { ...plainSetup, ...setup }, ON_MMA_SYNC, at).step;
  expect(Math.abs(got / ms() - 1)).toBeLessThan(SECONDS);
});

test('step time: 124M with attention on wgmma', () => {
  const setup = { ...plainSetup, microBatch: 16 };
  const got = 1000 * predictStepTime(sizes('124M'), setup, H200, machine(1, 16)).step;
  const ms = measuredNumber('train-124M-wgmma', 'step_ms', 'median');
  expect(Math.abs(got / ms - 1)).toBeLessThan(SECONDS);
});

const llama8B = (kind: 'lora' | 'qlora', autocastAdapterDtype: boolean) => {
  const model = new Llama({
    vocabSize: 128_256,
    maxSeq: 8192,
    layers: 32,
    channels: 4096,
    heads: 32,
    kvHeads: 8,
    hidden: 14_336,
  });
  const base = kind === 'qlora' ? quantizeUnmade(model) : model;
  return sizesOf(addLora(base, { r: 16, targetModules: 'all-linear', autocastAdapterDtype }));
};

test.each([
  ['LoRA r 16', 'lora', false],
  ['QLoRA r 16, checkpointing', 'qlora', true],
] as const)('adapters of 8B in f32, %s: bytes and time', (row, kind, checkpointing) => {
  const sizes = llama8B(kind, true);
  const setup = { ...plainSetup, microBatch: 2, seq: 4096, checkpointing };
  const of = (name: string) => numberOf('adapters-train-h200', ['split_bf16', row, name]);
  const got = totalBytes(predictMemory(sizes, setup).device) / GIB;
  const { step } = predictStepTime(sizes, setup, H200, machine(1, 16));
  expect(Math.abs(got / of('peak_device_gib') - 1)).toBeLessThan(BYTES);
  expect(Math.abs((1000 * step) / of('step_ms') - 1)).toBeLessThan(SECONDS);
});

const LORA =
  "8B shape, LoRA r 16 on all linear layers, B4 T2048, checkpointing, adapters' products in 16 bits";

test.each([
  ['16-bit adapters', LORA, 'lora', false, 4],
  ['4 bits', '8B shape, QLoRA r 16, B2 T2048, checkpointing', 'qlora', false, 2],
] as const)('adapters of 8B, %s: bytes and time', (_, row, kind, isWide, microBatch) => {
  const sizes = llama8B(kind, isWide);
  const setup = { ...plainSetup, microBatch, seq: 2048, checkpointing: true };
  const gib = measuredNumber('llama-h200', row, 'ours', 'peak_device_gib');
  const got = totalBytes(predictMemory(sizes, setup).device) / GIB;
  expect(Math.abs(got / gib - 1)).toBeLessThan(BYTES);
  const ms = measuredNumber('llama-h200', row, 'ours', 'ms_per_step', 'median');
  const { step } = predictStepTime(sizes, setup, H200, machine(1, 16));
  expect(Math.abs((1000 * step) / ms - 1)).toBeLessThan(SECONDS);
});
