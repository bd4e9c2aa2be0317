// Adafactor: stores second moments as sums of rows and columns, and scales steps by the size of the
// parameter. Sources: Shazeer & Stern 2018, arXiv:1804.04235; the Adafactor of fairseq and
// transformers.

import { argumentError } from '../runtime/input-errors.js';
import type {
  AdafactorScalars,
  AdafactorSumsArgs,
  MatrixPart,
} from '../runtime/kernels.generated.js';
import { namesOf, readOptions } from '../runtime/options.js';
import { requireFinite } from '../runtime/require-number.js';
import { requireType } from '../runtime/require-type.js';
import { leading, required } from '../runtime/required.js';
import { numel, type View } from '../runtime/view.js';
import { type DeclaredState, perElement, perParameter } from './declared-state.js';
import { flatSlice, requireWhole } from './flat-slice.js';
import type {
  ParameterPlace,
  SummedOptimizer,
  UpdateSettings,
  UpdateTensors,
} from './optimizer.js';
import { makeGroups, type ParamGroup, type ParamsOf } from './param-groups.js';
import { StandaloneOptimizer } from './standalone.js';
import type { UpdateKernels } from './update-kernels.js';

/**
 * Options of Adafactor. lr and weightDecay are defaults of the groups; the others apply to all
 * groups.
 */
export interface AdafactorOptions {
  /** Learning rate. Default: null, which selects relativeStep. */
  lr?: number | null;
  /**
   * [added to squared gradients, smallest size of a parameter for scaleParameter]. Default: [1e-30,
   * 1e-3].
   */
  eps?: readonly [number, number];
  /** Largest root mean square of a direction; larger directions are scaled down. Default: 1. */
  clipThreshold?: number;
  /** At update t, the second moment decays by 1 - t^decayRate. Default: -0.8. */
  decayRate?: number;
  /**
   * Decay of a first moment, which needs 4 bytes per element. Default: null, which means no first
   * moment.
   */
  beta1?: number | null;
  /** Weight decay, decoupled from the gradient. Default: 0. */
  weightDecay?: number;
  /** Multiply the learning rate by the root mean square of the parameter. Default: true. */
  scaleParameter?: boolean;
  /**
   * Use the learning rate min(1e-2, 1 / sqrt(t)) at update t, times the lr of the group, which is 1
   * unless the caller sets it. Default: true if lr is null.
   */
  relativeStep?: boolean | null;
  /** With relativeStep: use 1e-6 t in place of 1e-2. Default: false. */
  warmupInit?: boolean;
}

/** One parameter of a range, whole or in part, with the positions of its sums. */
interface ParameterUpdate {
  place: ParameterPlace;
  index: number;
  /**
   * The part of the parameter's matrices in the range. Vectors count as matrices with one column.
   */
  matrix: MatrixPart;
  /**
   * Offsets of this parameter in the range's buffers: first-round sums, row values, column values.
   */
  sums: number;
  rows: number;
  columns: number;
}

/**
 * Adafactor: an optimizer with factored second moments.
 *
 * With d = 1 - t^decayRate, for a parameter of two or more dims, as matrices of the last two:
 *
 *   row = d row + (1 - d) mean over columns of (g^2 + eps0); column: the same over rows
 *   u = g / sqrt(row column / mean(row))
 *
 * For vectors:
 *
 *   v = d v + (1 - d) (g^2 + eps0)
 *   u = g / sqrt(v)
 *
 * Then, with a = lr max(eps1, rms(p)), or lr without scaleParameter:
 *
 *   u = a u / max(1, rms(u) / clipThreshold)
 *   m = beta1 m + (1 - beta1) u, and m replaces u, if beta1 is set
 *   p -= a wd p
 *   p -= u
 *
 * csrc/ops/adafactor_rule.h has the exact sequence of operations.
 */
export class Adafactor extends StandaloneOptimizer<ParamGroup> implements SummedOptimizer {
  readonly name = 'Adafactor';
  readonly groups: ParamGroup[];
  private readonly options: Required<Omit<AdafactorOptions, 'lr' | 'weightDecay'>>;

  /**
   * Throws DS_ARGUMENT for lr together with relativeStep, for warmupInit without relativeStep, and
   * for an invalid option or parameter group.
   */
  constructor(params: ParamsOf<ParamGroup>, given: AdafactorOptions = {}) {
    super();
    const options = readOptions('Adafactor', given, namesOf.AdafactorOptions);
    const { lr = null, weightDecay = 0, eps = [1e-30, 1e-3], decayRate = -0.8 } = options;
    const { clipThreshold = 1, beta1 = null, scaleParameter = true, warmupInit = false } = options;
    const relativeStep = options.relativeStep ?? lr === null;
    requireType('Adafactor relativeStep', relativeStep, 'boolean');
    requireRate({ lr, relativeStep, warmupInit });
    requireFinite('Adafactor eps[0]', eps[0], 0);
    requireFinite('Adafactor eps[1]', eps[1], 0);
    requireFinite('Adafactor decayRate', decayRate, Number.NEGATIVE_INFINITY, 0);
    requireFinite('Adafactor clipThreshold', clipThreshold, Number.MIN_VALUE);
    if (beta1 !== null) requireFinite('Adafactor beta1', beta1, 0, 1);
    this.groups = makeGroups<ParamGroup>('Adafactor', params, { lr: lr ?? 1, weightDecay });
    this.options = {
      eps,
      decayRate,
      clipThreshold,
      beta1,
      scaleParameter,
      relativeStep,
      warmupInit,
    };
  }

  declareState(_group: number, shape: readonly number[]): DeclaredState {
    const moment: DeclaredState = this.options.beta1 === null ? {} : { exp_avg: perElement(shape) };
    if (!isFactored(shape)) return { exp_avg_sq: perElement(shape), ...moment };
    const rows = shape.slice(0, -1);
    const columns = [...shape.slice(0, -2), required(shape.at(-1))];
    return {
      exp_avg_sq_row: perParameter(rows),
      exp_avg_sq_col: perParameter(columns),
      row_factor: perParameter(rows, { saved: false }),
      column_factor: perParameter(columns, { saved: false }),
      ...moment,
    };
  }

  /**
   * Returns the numbers of sums. For matrices, round 0 sums the squares of weights, and of
   * gradients by row and by column; round 1 sums the squares of directions. For vectors, round 0
   * sums the squares of weights and directions.
   */
  override sumsPerRound(_group: number, shape: readonly number[]): readonly number[] {
    if (!isFactored(shape)) return [2];
    const { rows, matrices, columns } = matrixOf(shape);
    return [1 + rows + matrices * columns, 1];
  }

  needsWholeParameters(): boolean {
    return true;
  }

  /**
   * Throws DS_CONFIG for a range with a part of a parameter, because means need whole parameters.
   */
  update(tensors: UpdateTensors, settings: UpdateSettings, kernels: UpdateKernels): void {
    requireWhole(this.name, tensors);
    tensors.sums.forEach((_, round) => {
      this.measure(tensors, settings, kernels, round);
    });
    this.applySums(tensors, settings, kernels);
  }

  measure(
    tensors: UpdateTensors,
    { step }: UpdateSettings,
    kernels: UpdateKernels,
    round: number,
  ): void {
    const { decayRate, eps } = this.options;
    const rule = { decay: 1 - step ** decayRate, eps: eps[0] };
    for (const update of updatesOf(tensors)) {
      if (!isFactored(update.place.shape)) measureMoment(tensors, update, rule, kernels);
      else if (round === 0) measureMatrix(tensors, update, kernels);
      else measureDirection(tensors, update, rule, kernels);
    }
  }

  applySums(tensors: UpdateTensors, settings: UpdateSettings, kernels: UpdateKernels): void {
    const rule = this.rule(settings, tensors.group);
    for (const update of updatesOf(tensors)) apply(tensors, update, rule, kernels);
  }

  private rule({ step, groups }: UpdateSettings, group: number): AdafactorScalars {
    const { lr, weightDecay } = required(groups[group]);
    const { eps, clipThreshold, beta1, scaleParameter } = this.options;
    const { relativeStep, warmupInit } = this.options;
    const relative = Math.min(warmupInit ? 1e-6 * step : 1e-2, 1 / Math.sqrt(step));
    return {
      lr: relativeStep ? lr * relative : lr,
      leastScale: eps[1],
      clipThreshold,
      weightDecay,
      beta1: beta1 ?? 0,
      scaleParameter,
    };
  }
}

/** Returns whether the second moment is stored as rows and columns. */
const isFactored = (shape: readonly number[]): boolean => shape.length > 1 && numel(shape) > 0;

/**
 * Returns the sizes of a whole parameter with two or more dims, as matrices of its last two dims.
 */
function matrixOf(shape: readonly number[]): MatrixPart {
  const [rows, columns] = leading(shape.slice(-2), 2);
  const matrices = numel(shape) / (rows * columns);
  return { from: 0, matrices, rows: matrices * rows, columns };
}

function* updatesOf({ places }: UpdateTensors): Generator<ParameterUpdate> {
  const start = { sums: 0, rows: 0, columns: 0 };
  for (const [index, place] of places.entries()) {
    const { shape, from } = place;
    const isMatrix = isFactored(shape);
    const layout = isMatrix ? matrixOf(shape) : columnOf(shape);
    yield { place, index, matrix: { ...layout, from }, ...start };
    start.rows += layout.rows;
    start.columns += layout.matrices * layout.columns;
    start.sums += isMatrix ? 1 + layout.rows + layout.matrices * layout.columns : 2;
  }
}

const columnOf = (shape: readonly number[]): MatrixPart => ({
  from: 0,
  matrices: 1,
  rows: numel(shape),
  columns: 1,
});

/** Returns the first-round sums of a matrix. */
function sumsOf(
  { sums }: UpdateTensors,
  { matrix, sums: offset }: ParameterUpdate,
): Pick<AdafactorSumsArgs, 'squares' | 'rows' | 'columns'> {
  const { rows, matrices, columns } = matrix;
  const first = sums[0]!;
  return {
    squares: flatSlice(first, { offset, numel: 1 }),
    rows: flatSlice(first, { offset: offset + 1, numel: rows }),
    columns: flatSlice(first, { offset: offset + 1 + rows, numel: matrices * columns }),
  };
}

/** Returns a matrix's part of two state tensors: one value per row, and one value per column. */
function factorsOf(
  { state }: UpdateTensors,
  { matrix, rows, columns }: ParameterUpdate,
  [row, column]: readonly [string, string],
): [View, View] {
  return [
    flatSlice(state[row]!, { offset: rows, numel: matrix.rows }),
    flatSlice(state[column]!, { offset: columns, numel: matrix.matrices * matrix.columns }),
  ];
}

function measureMatrix(
  tensors: UpdateTensors,
  update: ParameterUpdate,
  { adafactorSums }: UpdateKernels,
): void {
  const { master, grad, control } = tensors;
  adafactorSums({
    master: flatSlice(master, update.place),
    grad: flatSlice(grad, update.place),
    ...sumsOf(tensors, update),
    control,
    part: update.matrix,
  });
}

interface Decay {
  decay: number;
  eps: number;
}

function measureDirection(
  tensors: UpdateTensors,
  update: ParameterUpdate,
  rule: Decay,
  kernels: UpdateKernels,
): void {
  const { grad, sums, control } = tensors;
  const { rows: rowSums, columns: columnSums } = sumsOf(tensors, update);
  const [row, column] = factorsOf(tensors, update, ['exp_avg_sq_row', 'exp_avg_sq_col']);
  const [rowFactor, columnFactor] = factorsOf(tensors, update, ['row_factor', 'column_factor']);
  const factors = { rowFactor, columnFactor, control };
  kernels.adafactorFactors({
    rowSums,
    columnSums,
    row,
    column,
    ...factors,
    part: { ...update.matrix, from: 0 },
    ...rule,
  });
  kernels.adafactorDirection({
    grad: flatSlice(grad, update.place),
    ...factors,
    squares: flatSlice(sums[1]!, { offset: update.index, numel: 1 }),
    part: update.matrix,
  });
}

function measureMoment(
  { master, grad, state, sums, control }: UpdateTensors,
  { place, sums: offset }: ParameterUpdate,
  rule: Decay,
  { adafactorMoment }: UpdateKernels,
): void {
  adafactorMoment({
    master: flatSlice(master, place),
    v: flatSlice(state.exp_avg_sq!, place),
    grad: flatSlice(grad, place),
    squares: flatSlice(sums[0]!, { offset, numel: 2 }),
    control,
    ...rule,
  });
}

function apply(
  tensors: UpdateTensors,
  update: ParameterUpdate,
  rule: AdafactorScalars,
  { adafactorApply }: UpdateKernels,
): void {
  const { master, grad, weight, state, sums, control } = tensors;
  const { place, matrix, index, sums: offset } = update;
  const isMatrix = isFactored(place.shape);
  const [rowFactor, columnFactor] = isMatrix
    ? factorsOf(tensors, update, ['row_factor', 'column_factor'])
    : [null, null];
  adafactorApply({
    master: flatSlice(master, place),
    grad: flatSlice(grad, place),
    rowFactor,
    columnFactor,
    v: isMatrix ? null : flatSlice(state.exp_avg_sq!, place),
    moment: state.exp_avg ? flatSlice(state.exp_avg, place) : null,
    weight: weight && flatSlice(weight, place),
    parameterSquares: flatSlice(sums[0]!, { offset, numel: 1 }),
    directionSquares: isMatrix
      ? flatSlice(sums[1]!, { offset: index, numel: 1 })
      : flatSlice(sums[0]!, { offset: offset + 1, numel: 1 }),
    control,
    part: matrix,
    rule,
  });
}

function requireRate({
  lr,
  relativeStep,
  warmupInit,
}: {
  lr: number | null;
  relativeStep: boolean;
  warmupInit: boolean;
}): void {
  const refuse = (expected: string, got: string): never => {
    throw argumentError('Adafactor', expected, got);
  };
  if (relativeStep && lr !== null) refuse('lr or relativeStep', `both, lr ${lr}`);
  if (!relativeStep && lr === null) refuse('lr, because relativeStep is false', 'no lr');
  if (warmupInit && !relativeStep) refuse('relativeStep with warmupInit', 'only warmupInit');
}
