// Evaluates and predicts: each sample once, with sums that are equal on all ranks.

import { types } from 'node:util';
import type { JsonData, JsonValue } from '../../types/json.js';
import type { CheckpointWorld } from '../checkpoint/index.js';
import type { Engine } from '../engine/engine.js';
import { DATA } from '../engine/ranks.js';
import { DsError } from '../errors.js';
import type { NumericArray } from '../runtime/dtype.js';
import { formatValue } from '../runtime/format-value.js';
import { isObject } from '../runtime/is-object.js';
import { required } from '../runtime/required.js';
import { LossReport, noGrad, scope, Tensor } from '../tensor/index.js';
import type { EvalData } from './eval-data.js';
import type { LossInput, MetricSums } from './evaluation-options.js';
import type { Metrics } from './events.js';
import type { Forward, MicroBatch, Objective } from './micro-batch.js';
import { type BatchMover, discard } from './moved-batch.js';

/** Parts of an evaluation. */
interface Judge<Batch> {
  engine: Engine;
  objective: Objective<Batch>;
  mover: BatchMover;
  /** The ranks that judge together; every one of them calls. */
  world: CheckpointWorld;
}

/** Values of one sample. */
export type Prediction = NumericArray;

type Sums = Record<string, { sum: number; count: number }>;

/**
 * The mean loss of `data` per counted target, and `metrics`, over all ranks; bit-identical on all
 * ranks. Throws DS_DATA if no target counts, DS_ARGUMENT for invalid metrics.
 */
export async function evaluate<Batch>(
  judge: Judge<Batch>,
  data: EvalData<Batch>,
  options: {
    maxBatches?: number;
    accuracy?: boolean;
    metrics?: ((input: LossInput<Batch>) => MetricSums) | undefined;
  },
): Promise<Metrics> {
  const { objective } = judge;
  const sums: Sums = { loss: { sum: 0, count: 0 } };
  const report = options.accuracy && !objective.judged ? new LossReport(judge.engine.device) : null;
  await inEvaluation(judge.engine, async (forward) => {
    for await (const { micro, isOwn } of batchesOf(judge, data, options.maxBatches)) {
      report?.reset();
      const own = noGrad(() => objective.judged?.(forward, micro));
      const loss =
        own?.loss ?? noGrad(() => scope(() => objective.mean(forward, micro, report).item()));
      const input = { forward: withoutGrad(forward), batch: micro.batch };
      const further = options.metrics ? requireObject(options.metrics(input)) : {};
      if (!isOwn) continue;
      add(sums, {
        loss: { sum: micro.counted > 0 ? loss * micro.counted : 0, count: micro.counted },
      });
      if (report) add(sums, { accuracy: choicesOf(report) });
      if (own) add(sums, own.sums);
      add(sums, requireSums(further, report ? ['loss', 'accuracy'] : ['loss']));
    }
  }).finally(() => report?.dispose());
  const total: Sums = {};
  for (const other of await ofDataRanks(judge, 'evaluation', serializeSums(sums))) {
    add(total, read(other));
  }
  requireCounted(total);
  if (objective.finished) return objective.finished(total) as Metrics;
  const means = meansOf(total);
  return (objective.derived?.(means) as Metrics | undefined) ?? means;
}

/**
 * Outputs of the model for all samples of `data`, in order, on every rank. `output` returns a
 * tensor with one row per sample of a batch.
 */
export async function predict<Batch>(
  judge: Judge<Batch>,
  data: EvalData<Batch>,
  output?: (input: LossInput<Batch>) => Tensor,
): Promise<Prediction[]> {
  const ownPredictions: Prediction[] = [];
  const { objective, engine } = judge;
  await inEvaluation(engine, async (forward) => {
    for await (const { micro, isOwn } of batchesOf(judge, data)) {
      noGrad(() =>
        scope(() => {
          const out = output
            ? output({ forward, batch: micro.batch })
            : objective.outputs(forward, micro);
          if (isOwn) ownPredictions.push(...rowsOf(out));
        }),
      );
    }
  });
  const ofRanks = await ofDataRanks(judge, 'predictions', ownPredictions.map(pack));
  return inTurn(ofRanks.map((rows) => rows.map(unpack)));
}

/**
 * Results of the data ranks in order. Ranks that share a model, and copies, have equal results; the
 * first of them provides it.
 */
async function ofDataRanks<Batch, Data extends JsonData<Data>>(
  { world, engine: { mesh } }: Judge<Batch>,
  label: string,
  ownData: Data,
): Promise<Data[]> {
  const speakers = mesh.shape.ranksAlong(0, ...DATA);
  const said = speakers.includes(world.rank) ? (ownData as JsonValue) : null;
  const found = (await world.exchange(label, said)) as Data[];
  return speakers.map((rank) => found[rank] as Data);
}

/** Runs `body` with the model in evaluation mode, then restores the mode. */
async function inEvaluation(
  engine: Engine,
  body: (forward: Forward) => Promise<void>,
): Promise<void> {
  const { training } = engine.module;
  engine.eval();
  try {
    await body((...inputs) => engine.forward<Tensor>(...inputs));
  } finally {
    if (training) engine.train();
  }
}

const withoutGrad =
  (forward: Forward): Forward =>
  (...inputs) =>
    noGrad(() => forward(...inputs));

async function* batchesOf<Batch>(
  { objective, mover }: Judge<Batch>,
  data: EvalData<Batch>,
  max = Number.POSITIVE_INFINITY,
): AsyncGenerator<{ micro: MicroBatch<Batch>; isOwn: boolean }> {
  let done = 0;
  for await (const { batch, isOwn } of data) {
    const micro = mover.move(objective.counted(batch));
    try {
      yield { micro, isOwn };
    } finally {
      discard(micro);
    }
    if (++done >= max) return;
  }
}

function add(to: Sums, sums: MetricSums): void {
  for (const [name, { sum, count }] of Object.entries(sums)) {
    const into = to[name] ?? { sum: 0, count: 0 };
    to[name] = { sum: into.sum + sum, count: into.count + count };
  }
}

function requireCounted({ loss }: Sums): void {
  if (!loss || loss.count === 0) {
    throw new DsError({
      code: 'DS_DATA',
      op: 'Trainer evaluate',
      expected: 'data with a target that counts',
      got: 'none',
      hint: 'Check the labels: labels of -100 do not count.',
    });
  }
}

function meansOf(sums: Sums): Metrics {
  const means = Object.entries(sums).map(([name, { sum, count }]) => [name, sum / count]);
  return Object.fromEntries(means) as Metrics;
}

/** Sums of the accuracy: correct targets and counted targets. */
function choicesOf(report: LossReport): { sum: number; count: number } {
  const { correct, counted } = report.read();
  return { sum: correct, count: counted };
}

/** Refuses values without names, such as a promise: they would be lost. */
function requireObject(metrics: unknown): MetricSums {
  if (isObject<MetricSums>(metrics) && !types.isPromise(metrics)) return metrics;
  if (types.isPromise(metrics)) metrics.catch(() => {});
  throw new DsError({
    code: 'DS_ARGUMENT',
    op: 'Trainer eval.metrics',
    expected: 'an object of sums, { name: { sum, count } }',
    got: formatValue(metrics),
    hint: 'It is called once for each batch, and cannot be async.',
  });
}

function requireSums(metrics: MetricSums, taken: readonly string[]): MetricSums {
  for (const [name, value] of Object.entries(metrics)) {
    const isSum = typeof value?.sum === 'number' && Number.isFinite(value?.count);
    const isTaken = taken.includes(name);
    if (isSum && !isTaken) continue;
    throw new DsError({
      code: 'DS_ARGUMENT',
      op: `Trainer eval.metrics ${name}`,
      expected: isTaken ? `another name: the ${name} has it` : 'sums { sum, count } of a batch',
      got: formatValue(value),
    });
  }
  return metrics;
}

/** JSON has no numbers that are not finite. */
type WrittenSums = Record<string, [sum: string, count: number]>;

function serializeSums(sums: Sums): WrittenSums {
  const entries = Object.entries(sums);
  return Object.fromEntries(entries.map(([name, { sum, count }]) => [name, [String(sum), count]]));
}

function read(sums: WrittenSums): Sums {
  const entries = Object.entries(sums);
  return Object.fromEntries(
    entries.map(([name, [sum, count]]) => [name, { sum: Number(sum), count }]),
  );
}

/** Elements of dim 0, each a flat array. */
function rowsOf(out: unknown): Prediction[] {
  if (!(out instanceof Tensor) || out.ndim === 0) {
    const expected = 'a tensor with a row for each sample';
    const op = 'Trainer predict output';
    throw new DsError({ code: 'DS_ARGUMENT', op, expected, got: formatValue(out) });
  }
  const wide = out.dtype === 'f16' || out.dtype === 'bf16' ? out.to('f32') : out;
  const values = wide.toRaw();
  const rows = out.size(0);
  const width = values.length / rows;
  return Array.from({ length: rows }, (_, i) => values.slice(i * width, (i + 1) * width));
}

const ARRAYS = { Float32Array, Float64Array, Int32Array, BigInt64Array, Uint8Array };

interface PackedRow {
  type: keyof typeof ARRAYS;
  bytes: string;
}

function pack(row: Prediction): PackedRow {
  const bytes = Buffer.from(row.buffer, row.byteOffset, row.byteLength);
  return { type: row.constructor.name as keyof typeof ARRAYS, bytes: bytes.toString('base64') };
}

function unpack({ type, bytes }: PackedRow): Prediction {
  const raw = Uint8Array.from(Buffer.from(bytes, 'base64'));
  return new ARRAYS[type](raw.buffer) as Prediction;
}

/** Sample i of rank r is number i * ranks + r. */
function inTurn(ofRanks: readonly Prediction[][]): Prediction[] {
  const longest = Math.max(...ofRanks.map(({ length }) => length));
  return Array.from({ length: longest }, (_, i) =>
    ofRanks.flatMap((rows) => (i < rows.length ? [required(rows[i])] : [])),
  ).flat();
}
