// Evaluations and predictions of a Trainer. Each sample is used once; results are equal on all
// ranks.

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
import { type BatchMover, disposeMicroBatch } from './moved-batch.js';

/** The parts of an evaluation: the engine, the objective, and the ranks. */
interface Evaluator<Batch> {
  engine: Engine;
  objective: Objective<Batch>;
  mover: BatchMover;
  /** The ranks that evaluate together. All of them must call the functions. */
  world: CheckpointWorld;
}

/** The output of the model for one sample. */
export type Prediction = NumericArray;

type Sums = Record<string, { sum: number; count: number }>;

/**
 * Returns the mean loss per counted target and the other metrics of `data`, over all ranks. They
 * are equal on all ranks, bit for bit. Throws DS_DATA if no target counts, DS_ARGUMENT if
 * `options.metrics` returns invalid sums.
 */
export async function evaluate<Batch>(
  evaluator: Evaluator<Batch>,
  data: EvalData<Batch>,
  options: {
    maxBatches?: number;
    accuracy?: boolean;
    metrics?: ((input: LossInput<Batch>) => MetricSums) | undefined;
  },
): Promise<Metrics> {
  const { objective } = evaluator;
  const sums: Sums = { loss: { sum: 0, count: 0 } };
  const report =
    options.accuracy && !objective.evaluateBatch ? new LossReport(evaluator.engine.device) : null;
  await runInEvaluation(evaluator.engine, async (forward) => {
    for await (const { micro, isOwn } of moveBatches(evaluator, data, options.maxBatches)) {
      report?.reset();
      const methodResult = noGrad(() => objective.evaluateBatch?.(forward, micro));
      const loss =
        methodResult?.loss ??
        noGrad(() => scope(() => objective.computeMeanLoss(forward, micro, report).item()));
      const input = { forward: withoutGrad(forward), batch: micro.batch };
      const metrics = options.metrics ? requireObject(options.metrics(input)) : {};
      if (!isOwn) continue;
      addSums(sums, {
        loss: { sum: micro.counted > 0 ? loss * micro.counted : 0, count: micro.counted },
      });
      if (report) addSums(sums, { accuracy: readAccuracy(report) });
      if (methodResult) addSums(sums, methodResult.sums);
      addSums(sums, requireSums(metrics, report ? ['loss', 'accuracy'] : ['loss']));
    }
  }).finally(() => report?.dispose());
  const total: Sums = {};
  for (const other of await gatherFromDataRanks(evaluator, 'evaluation', serializeSums(sums))) {
    addSums(total, parseSums(other));
  }
  requireCounted(total);
  if (objective.computeMetrics) return objective.computeMetrics(total) as Metrics;
  const means = computeMeans(total);
  return (objective.deriveMetrics?.(means) as Metrics | undefined) ?? means;
}

/**
 * Returns the model's outputs for all samples of `data`, in order, on every rank. `output` returns
 * a tensor with one row per sample of a batch; default: the objective's outputs.
 */
export async function predict<Batch>(
  evaluator: Evaluator<Batch>,
  data: EvalData<Batch>,
  output?: (input: LossInput<Batch>) => Tensor,
): Promise<Prediction[]> {
  const ownPredictions: Prediction[] = [];
  const { objective, engine } = evaluator;
  await runInEvaluation(engine, async (forward) => {
    for await (const { micro, isOwn } of moveBatches(evaluator, data)) {
      noGrad(() =>
        scope(() => {
          const out = output
            ? output({ forward, batch: micro.batch })
            : objective.computeOutputs(forward, micro);
          if (isOwn) ownPredictions.push(...splitRows(out));
        }),
      );
    }
  });
  const ofRanks = await gatherFromDataRanks(evaluator, 'predictions', ownPredictions.map(packRow));
  return interleave(ofRanks.map((rows) => rows.map(unpackRow)));
}

/**
 * Returns the data of all data ranks, in order. Ranks that divide a model among them have equal
 * data, so only the first of them sends it.
 */
async function gatherFromDataRanks<Batch, Data extends JsonData<Data>>(
  { world, engine: { mesh } }: Evaluator<Batch>,
  label: string,
  ownData: Data,
): Promise<Data[]> {
  const senders = mesh.shape.ranksAlong(0, ...DATA);
  const message = senders.includes(world.rank) ? (ownData as JsonValue) : null;
  const received = (await world.exchange(label, message)) as Data[];
  return senders.map((rank) => received[rank] as Data);
}

/** Runs `body` with the model in evaluation mode, then restores the previous mode. */
async function runInEvaluation(
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

async function* moveBatches<Batch>(
  { objective, mover }: Evaluator<Batch>,
  data: EvalData<Batch>,
  max = Number.POSITIVE_INFINITY,
): AsyncGenerator<{ micro: MicroBatch<Batch>; isOwn: boolean }> {
  let done = 0;
  for await (const { batch, isOwn } of data) {
    const micro = mover.move(objective.countBatch(batch));
    try {
      yield { micro, isOwn };
    } finally {
      disposeMicroBatch(micro);
    }
    if (++done >= max) return;
  }
}

function addSums(to: Sums, sums: MetricSums): void {
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

function computeMeans(sums: Sums): Metrics {
  const means = Object.entries(sums).map(([name, { sum, count }]) => [name, sum / count]);
  return Object.fromEntries(means) as Metrics;
}

/** Returns the number of correct and of counted targets. */
function readAccuracy(report: LossReport): { sum: number; count: number } {
  const { correct, counted } = report.read();
  return { sum: correct, count: counted };
}

/**
 * Throws DS_ARGUMENT unless `metrics` is an object; for example, an async function returns a
 * promise.
 */
function requireObject(metrics: unknown): MetricSums {
  if (isObject<MetricSums>(metrics) && !types.isPromise(metrics)) return metrics;
  if (types.isPromise(metrics)) metrics.catch(() => {});
  throw new DsError({
    code: 'DS_ARGUMENT',
    op: 'Trainer eval.metrics',
    expected: 'an object of sums, { name: { sum, count } }',
    got: formatValue(metrics),
    hint: 'eval.metrics is called once for each batch, and cannot be async.',
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

/** Sums for JSON. They are texts, because JSON has no infinity and no NaN. */
type SerializedSums = Record<string, [sum: string, count: number]>;

function serializeSums(sums: Sums): SerializedSums {
  const entries = Object.entries(sums);
  return Object.fromEntries(entries.map(([name, { sum, count }]) => [name, [String(sum), count]]));
}

function parseSums(sums: SerializedSums): Sums {
  const entries = Object.entries(sums);
  return Object.fromEntries(
    entries.map(([name, [sum, count]]) => [name, { sum: Number(sum), count }]),
  );
}

/** Returns each row of the first dim as a flat array. */
function splitRows(out: unknown): Prediction[] {
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

function packRow(row: Prediction): PackedRow {
  const bytes = Buffer.from(row.buffer, row.byteOffset, row.byteLength);
  return { type: row.constructor.name as keyof typeof ARRAYS, bytes: bytes.toString('base64') };
}

function unpackRow({ type, bytes }: PackedRow): Prediction {
  const raw = Uint8Array.from(Buffer.from(bytes, 'base64'));
  return new ARRAYS[type](raw.buffer) as Prediction;
}

/** Merges the samples of all ranks: sample i of rank r becomes sample i * ranks + r. */
function interleave(ofRanks: readonly Prediction[][]): Prediction[] {
  const longest = Math.max(...ofRanks.map(({ length }) => length));
  return Array.from({ length: longest }, (_, i) =>
    ofRanks.flatMap((rows) => (i < rows.length ? [required(rows[i])] : [])),
  ).flat();
}
