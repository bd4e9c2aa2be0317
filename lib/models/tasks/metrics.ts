// Metrics of task models. Each batch gives sums; the sums over all batches and ranks give the
// metrics.

import { leading, required } from '../../runtime/required.js';
import type { Tensor } from '../../tensor/index.js';
import { IGNORED } from './targets.js';
import type { TaskModel } from './task-model.js';

/** Sums over one batch. The Trainer adds them over batches and ranks, then divides. */
export type MetricSums = Readonly<Record<string, { sum: number; count: number }>>;

/** Names of metrics that an evaluation of a task has in addition to "loss". */
export const TASK_METRICS: readonly string[] = [
  'accuracy',
  'f1',
  'precision',
  'recall',
  'matthews_correlation',
  'pearson',
  'mse',
  'exact_match',
];

/** Targets of a batch, on any device. */
interface TaskTargets {
  labels?: Tensor;
  starts?: Tensor;
  ends?: Tensor;
  mask?: Tensor;
}

type Sums = Record<string, { sum: number; count: number }>;

/** Prefix of sums that are inputs of metrics and are not reported. */
const HIDDEN = '#';

function addTo(sums: Sums, name: string, sum: number, count = 1): void {
  const before = sums[name] ?? { sum: 0, count: 0 };
  sums[name] = { sum: before.sum + sum, count: before.count + count };
}

const numbersOf = (tensor: Tensor): number[] => tensor.to('f32').toArray();

/**
 * Returns the sums of a batch. `outputs`: logits, with the labels in the last dim; for question
 * answering [B, T, 2].
 */
export function taskSums(model: TaskModel, outputs: Tensor, targets: TaskTargets): MetricSums {
  const sums: Sums = {};
  if (model.task === 'question-answering') addSpans(sums, outputs, targets);
  const { labels } = targets;
  if (!labels) return sums;
  const values = numbersOf(outputs);
  const width = outputs.size(-1);
  const rows = Array.from({ length: values.length / width }, (_, r) =>
    values.slice(r * width, (r + 1) * width),
  );
  const wanted = labels.dtype === 'i64' ? labels.toArray().map(Number) : numbersOf(labels);
  const isClass = labels.dtype === 'i32' || labels.dtype === 'i64';
  if (model.problemType === 'regression' || (!isClass && width === 1)) {
    addValues(sums, values, wanted);
  } else if (!isClass || model.problemType === 'multi_label_classification') {
    addSeveral(sums, rows, wanted);
  } else if (model.task === 'token-classification' && hasEntities(model.labels)) {
    addEntities(sums, model.labels, { rows, wanted, length: labels.size(1) });
  } else {
    addClasses(sums, rows, wanted, model.task !== 'masked-lm');
  }
  return sums;
}

/** Returns the metrics from the sums over all batches and ranks. `labels`: number of labels. */
export function taskMetrics(sums: MetricSums, labels: number): Record<string, number> {
  const open = Object.entries(sums).filter(([name]) => !name.startsWith(HIDDEN));
  const means = Object.fromEntries(open.map(([name, { sum, count }]) => [name, sum / count]));
  const of = (name: string): number => sums[`${HIDDEN}${name}`]?.sum ?? 0;
  if (sums[`${HIDDEN}n`]) Object.assign(means, valueMetrics(of));
  if (sums[`${HIDDEN}hit`]) Object.assign(means, rates(of('hit'), of('said'), of('true')));
  if (sums[`${HIDDEN}rows`]) Object.assign(means, classMetrics(of, labels));
  return means;
}

const argmax = (row: readonly number[]): number => row.indexOf(Math.max(...row));

function addClasses(
  sums: Sums,
  rows: readonly (readonly number[])[],
  wanted: readonly number[],
  byClass: boolean,
): void {
  rows.forEach((row, r) => {
    const label = required(wanted[r]);
    if (label === IGNORED) return;
    const predicted = argmax(row);
    addTo(sums, 'accuracy', Number(predicted === label));
    if (!byClass) return;
    addTo(sums, `${HIDDEN}rows`, 1, 0);
    addTo(sums, `${HIDDEN}true.${label}`, 1, 0);
    addTo(sums, `${HIDDEN}said.${predicted}`, 1, 0);
    if (predicted === label) addTo(sums, `${HIDDEN}hit.${label}`, 1, 0);
  });
}

/**
 * With two labels, returns the metrics of label 1. With more, returns means over the labels that
 * occur in targets or predictions ("macro" in scikit-learn).
 */
function classMetrics(of: (name: string) => number, labels: number): Record<string, number> {
  const count = (kind: string): number[] =>
    Array.from({ length: labels }, (_, label) => of(`${kind}.${label}`));
  const hits = count('hit');
  const predicted = count('said');
  const wanted = count('true');
  const each = hits.map((hit, i) => rates(hit, required(predicted[i]), required(wanted[i])));
  const seen = each.filter((_, i) => required(predicted[i]) + required(wanted[i]) > 0);
  const mean = (name: 'f1' | 'precision' | 'recall'): number =>
    seen.reduce((total, rates) => total + rates[name], 0) / seen.length;
  const chosen =
    labels === 2
      ? required(each[1])
      : { f1: mean('f1'), precision: mean('precision'), recall: mean('recall') };
  return { ...chosen, matthews_correlation: matthews(hits, predicted, wanted, of('rows')) };
}

interface Rates {
  f1: number;
  precision: number;
  recall: number;
}

function rates(hit: number, predicted: number, wanted: number): Rates {
  const part = (a: number, b: number): number => (b === 0 ? 0 : a / b);
  return {
    f1: part(2 * hit, predicted + wanted),
    precision: part(hit, predicted),
    recall: part(hit, wanted),
  };
}

/**
 * Returns the Matthews correlation coefficient of several classes; 0 if it is undefined. Source:
 * Gorodkin 2004.
 */
function matthews(
  hits: readonly number[],
  predicted: readonly number[],
  wanted: readonly number[],
  total: number,
): number {
  const sum = (values: readonly number[]): number => values.reduce((all, value) => all + value, 0);
  const cross = sum(predicted.map((value, i) => value * required(wanted[i])));
  const spread = (values: readonly number[]): number =>
    total * total - sum(values.map((value) => value * value));
  const scale = Math.sqrt(spread(predicted) * spread(wanted));
  return scale === 0 ? 0 : (sum(hits) * total - cross) / scale;
}

function addValues(sums: Sums, predicted: readonly number[], wanted: readonly number[]): void {
  predicted.forEach((x, i) => {
    const y = required(wanted[i]);
    addTo(sums, 'mse', (x - y) ** 2);
    for (const [name, value] of Object.entries({ n: 1, x, y, xx: x * x, yy: y * y, xy: x * y })) {
      addTo(sums, `${HIDDEN}${name}`, value, 0);
    }
  });
}

function valueMetrics(of: (name: string) => number): { pearson: number } {
  const n = of('n');
  const covariance = of('xy') - (of('x') * of('y')) / n;
  const scale = Math.sqrt((of('xx') - of('x') ** 2 / n) * (of('yy') - of('y') ** 2 / n));
  return { pearson: scale > 0 ? covariance / scale : 0 };
}

/**
 * Adds multi-label rows. A positive logit predicts its label. A row is accurate if all its labels
 * are.
 */
function addSeveral(
  sums: Sums,
  rows: readonly (readonly number[])[],
  wanted: readonly number[],
): void {
  rows.forEach((row, r) => {
    let isRight = true;
    row.forEach((logit, i) => {
      const [predicted, label] = [logit > 0, wanted[r * row.length + i] === 1];
      if (predicted !== label) isRight = false;
      addTo(sums, `${HIDDEN}said`, Number(predicted), 0);
      addTo(sums, `${HIDDEN}true`, Number(label), 0);
      addTo(sums, `${HIDDEN}hit`, Number(predicted && label), 0);
    });
    addTo(sums, 'accuracy', Number(isRight));
  });
}

/** Returns whether the labels mark entities, such as B-PER, I-PER and O. */
const hasEntities = (labels: readonly string[]): boolean =>
  labels.some((name) => /^[BI]-/.test(name)) &&
  labels.every((name) => /^(O$|[BIESLU]-)/.test(name));

/**
 * Returns each entity as "KIND START END", with END exclusive. Source: the default mode of seqeval,
 * equal to conlleval.
 */
function entitiesIn(tags: readonly string[]): Set<string> {
  const found = new Set<string>();
  let begun: { kind: string; at: number } | null = null;
  const end = (at: number): void => {
    if (begun) found.add(`${begun.kind} ${begun.at} ${at}`);
    begun = null;
  };
  tags.forEach((tag, t) => {
    const [mark = 'O', kind = ''] = tag === 'O' ? ['O'] : [required(tag[0]), tag.slice(2)];
    const continues = (mark === 'I' || mark === 'E' || mark === 'L') && begun?.kind === kind;
    if (!continues) {
      end(t);
      if (mark !== 'O') begun = { kind, at: t };
    }
    if (mark === 'E' || mark === 'L' || mark === 'S' || mark === 'U') end(t + 1);
  });
  end(tags.length);
  return found;
}

/** Logits and labels of tokens, row by row of `length`. */
interface Tokens {
  rows: readonly (readonly number[])[];
  wanted: readonly number[];
  length: number;
}

function addEntities(sums: Sums, names: readonly string[], { rows, wanted, length }: Tokens): void {
  for (let start = 0; start < rows.length; start += length) {
    const places = Array.from({ length }, (_, i) => start + i).filter((i) => wanted[i] !== IGNORED);
    const predicted = places.map((i) => required(names[argmax(rows[i] as number[])]));
    const right = places.map((i) => required(names[required(wanted[i])]));
    predicted.forEach((tag, i) => {
      addTo(sums, 'accuracy', Number(tag === right[i]));
    });
    const [found, known] = [entitiesIn(predicted), entitiesIn(right)];
    addTo(sums, `${HIDDEN}said`, found.size, 0);
    addTo(sums, `${HIDDEN}true`, known.size, 0);
    addTo(sums, `${HIDDEN}hit`, [...found].filter((text) => known.has(text)).length, 0);
  }
}

/**
 * Adds the overlap of the answer with the predicted span. The span starts at the largest start
 * logit and ends at the largest end logit from there on.
 */
function addSpans(sums: Sums, outputs: Tensor, { starts, ends, mask }: TaskTargets): void {
  if (!starts || !ends) return;
  const [B, T] = leading(outputs.shape, 2);
  const values = numbersOf(outputs);
  const seen = mask ? numbersOf(mask) : null;
  const [from, to] = [numbersOf(starts), numbersOf(ends)];
  const best = (b: number, side: number, first: number): number => {
    let found = first;
    for (let t = first; t < T; ++t) {
      if (seen && seen[b * T + t] === 0) continue;
      const at = (place: number): number => required(values[2 * (b * T + place) + side]);
      if (at(t) > at(found)) found = t;
    }
    return found;
  };
  for (let b = 0; b < B; ++b) {
    const [start, end] = [required(from[b]), required(to[b])];
    if (start >= T || end >= T) continue;
    const first = best(b, 0, 0);
    const last = best(b, 1, first);
    const shared = Math.max(0, Math.min(last, end) - Math.max(first, start) + 1);
    addTo(sums, 'exact_match', Number(first === start && last === end));
    addTo(sums, 'f1', rates(shared, last - first + 1, end - start + 1).f1);
  }
}
