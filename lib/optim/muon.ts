// Muon: updates matrices by their orthogonalized momentum, and other parameters by AdamW. Sources:
// Jordan et al. 2024, kellerjordan.github.io/posts/muon; DeepSpeed's Muon (MuonWithAuxAdam).

import type { DType } from '../runtime/dtype.js';
import { namesOf, readOptions } from '../runtime/options.js';
import { requireOneOf } from '../runtime/require-type.js';
import { required } from '../runtime/required.js';
import { numel, type View } from '../runtime/view.js';
import type { Tensor } from '../tensor/index.js';
import { adamScalars, adamTensors } from './adam-rule.js';
import { type DeclaredState, perElement } from './declared-state.js';
import { flatSlice, requireWhole } from './flat-slice.js';
import {
  type MuonGroup,
  type MuonGroupOptions,
  requireMatrices,
  requireRule,
} from './muon-groups.js';
import {
  inputMatrix,
  NEWTON_SCHULZ_METHODS,
  type NewtonSchulzMethod,
  type Orthogonalization,
  orthogonalize,
  workspaceSize,
} from './newton-schulz.js';
import type {
  GatheredOptimizer,
  ParameterPlace,
  UpdateSettings,
  UpdateTensors,
} from './optimizer.js';
import { listOf, makeGroups } from './param-groups.js';
import { StandaloneOptimizer } from './standalone.js';
import type { UpdateKernels } from './update-kernels.js';

/** Default hyperparameters of the groups for Muon and for AdamW. */
export interface MuonOptions {
  /** Learning rate of groups with useMuon. Default: 0.02. */
  lr?: number;
  /** Momentum factor. Default: 0.95. */
  momentum?: number;
  /** Use Nesterov momentum. Default: true. */
  nesterov?: boolean;
  /** Weight decay of all groups, decoupled from the gradient. Default: 0. */
  weightDecay?: number;
  /** Variant of the Newton-Schulz iteration. Default: "gram", as in DeepSpeed. */
  nsMethod?: NewtonSchulzMethod;
  /** Learning rate of groups without useMuon. Default: 3e-4. */
  adamLr?: number;
  /** Decay factors of AdamW's first and second moment. Default: [0.9, 0.95]. */
  betas?: readonly [number, number];
  /** Added to the denominator of AdamW's update. Default: 1e-10. */
  eps?: number;
}

/**
 * Muon: moves each matrix by its orthogonalized momentum. A parameter with more than two dims
 * counts as a matrix [first dim, product of the others].
 *
 *   m = b m + (1 - b) g
 *   u = b m + (1 - b) g (Nesterov)
 *   O = five Newton-Schulz steps on u / (||u|| + 1e-7)
 *   p -= lr wd p
 *   p -= lr sqrt(max(1, rows / columns)) O
 *
 * AdamW with bias correction updates all other parameters. Matrix products of f32 models run in
 * f32. The steps of 16-bit models run in bf16 ("standard") or f16 ("gram") with f32 accumulation,
 * as in DeepSpeed. Moments and master weights are always f32. With offload on a single rank, the
 * products run on CPU threads, which is slow, and each unit waits for its own workspace.
 */
export class Muon extends StandaloneOptimizer<MuonGroup> implements GatheredOptimizer<MuonGroup> {
  readonly name = 'Muon';
  readonly groups: MuonGroup[];
  private readonly nesterov: boolean;
  private readonly method: NewtonSchulzMethod;

  /**
   * Throws DS_ARGUMENT for a group without useMuon, for a vector in a group with useMuon, and for
   * an invalid option or parameter group.
   */
  constructor(params: Iterable<MuonGroupOptions>, given: MuonOptions = {}) {
    super();
    const options = readOptions('Muon', given, namesOf.MuonOptions);
    const { lr = 0.02, adamLr = 3e-4, momentum = 0.95, weightDecay = 0 } = options;
    const { betas = [0.9, 0.95], eps = 1e-10 } = options;
    const groups = (listOf('Muon', params) as MuonGroupOptions[]).map((item, index) => {
      const group = requireRule(item, index);
      const members = [...group.params];
      if (group.useMuon) requireMatrices(members, index);
      return { ...group, params: members, lr: group.lr ?? (group.useMuon ? lr : adamLr) };
    });
    const defaults = { lr, momentum, betas, eps, weightDecay, useMuon: true };
    this.groups = makeGroups<MuonGroup>('Muon', groups, defaults);
    this.nesterov = options.nesterov ?? true;
    const { nsMethod = 'gram' } = options;
    this.method = requireOneOf('Muon nsMethod', nsMethod, NEWTON_SCHULZ_METHODS);
  }

  declareState(group: number, shape: readonly number[]): DeclaredState {
    return this.usesMuon(group)
      ? { momentum_buffer: perElement(shape) }
      : { exp_avg: perElement(shape), exp_avg_sq: perElement(shape) };
  }

  /** Returns the number of sums: for matrices, the squares of the direction. */
  override sumsPerRound(group: number): readonly number[] {
    return this.usesMuon(group) ? [1] : [];
  }

  needsWholeParameters(group: number): boolean {
    return this.usesMuon(group);
  }

  /** Throws DS_CONFIG for a range with a part of a matrix. */
  update(
    tensors: UpdateTensors,
    settings: UpdateSettings<MuonGroup>,
    kernels: UpdateKernels,
  ): void {
    if (!this.usesMuon(tensors.group)) {
      adamUpdate(tensors, settings, kernels);
      return;
    }
    requireWhole(this.name, tensors);
    this.measure(tensors, settings, kernels);
    const { grad, places } = tensors;
    const dtype = this.directionDType(grad.dtype);
    const sizes = places.map(({ shape }) => workspaceSize(this.matrixOf(shape)));
    const workspace = kernels.workspace(grad, Math.max(0, ...sizes), dtype);
    places.forEach((place, index) => {
      if (place.numel === 0) return;
      const matrix = this.matrixOf(place.shape);
      const first = flat(inputMatrix(workspace, matrix.rows, matrix.columns));
      const one = { tensors, settings, place, index };
      this.directParameter(one, first, kernels);
      this.applyParameter(one, flat(orthogonalize(workspace, matrix, kernels)), kernels);
    });
    workspace.release();
  }

  measure(
    tensors: UpdateTensors,
    settings: UpdateSettings<MuonGroup>,
    kernels: UpdateKernels,
  ): void {
    const { group, grad, state, sums, control, places, starts } = tensors;
    if (!this.usesMuon(group) || places.length === 0) return;
    const { momentum: beta } = required(settings.groups[group]);
    const rule = { beta, nesterov: this.nesterov, control };
    kernels.muonMomentum({
      momentum: state.momentum_buffer!,
      grad,
      starts,
      sums: sums[0]!,
      ...rule,
    });
  }

  directionDType(grad: DType): DType {
    if (grad === 'f32') return 'f32';
    return this.method === 'gram' ? 'f16' : 'bf16';
  }

  direct(
    tensors: UpdateTensors,
    direction: Tensor,
    settings: UpdateSettings<MuonGroup>,
    kernels: UpdateKernels,
  ): void {
    tensors.places.forEach((place, index) => {
      this.directParameter(
        { tensors, settings, place, index },
        flatSlice(direction, place),
        kernels,
      );
    });
  }

  transform(direction: Tensor, shape: readonly number[], kernels: UpdateKernels): void {
    const matrix = this.matrixOf(shape);
    const workspace = kernels.workspace(direction, workspaceSize(matrix), direction.dtype);
    kernels.copy({
      in: direction,
      out: flat(inputMatrix(workspace, matrix.rows, matrix.columns)),
    });
    kernels.copy({ in: flat(orthogonalize(workspace, matrix, kernels)), out: direction });
    workspace.release();
  }

  applyDirection(
    tensors: UpdateTensors,
    direction: Tensor | null,
    settings: UpdateSettings<MuonGroup>,
    kernels: UpdateKernels,
  ): void {
    if (!this.usesMuon(tensors.group)) {
      adamUpdate(tensors, settings, kernels);
      return;
    }
    tensors.places.forEach((place, index) => {
      this.applyParameter(
        { tensors, settings, place, index },
        flatSlice(direction!, place),
        kernels,
      );
    });
  }

  private directParameter(
    { tensors, settings, place, index }: ParameterUpdate,
    direction: View,
    kernels: UpdateKernels,
  ): void {
    const { group, grad, state, sums, control } = tensors;
    kernels.muonDirection({
      momentum: flatSlice(state.momentum_buffer!, place),
      grad: flatSlice(grad, place),
      squares: flatSlice(sums[0]!, { offset: index, numel: 1 }),
      direction,
      control,
      beta: required(settings.groups[group]).momentum,
      nesterov: this.nesterov,
    });
  }

  private applyParameter(
    { tensors, settings, place }: ParameterUpdate,
    direction: View,
    kernels: UpdateKernels,
  ): void {
    const { group, master, weight, control } = tensors;
    const { lr, weightDecay } = required(settings.groups[group]);
    const { rows, columns } = this.matrixOf(place.shape);
    kernels.muonApply({
      master: flatSlice(master, place),
      direction,
      weight: weight && flatSlice(weight, place),
      control,
      lr,
      weightDecay,
      scale: Math.sqrt(Math.max(1, rows / columns)),
    });
  }

  private matrixOf(shape: readonly number[]): Orthogonalization {
    const rows = required(shape[0]);
    return { rows, columns: numel(shape) / Math.max(1, rows), method: this.method };
  }

  private usesMuon(group: number): boolean {
    return required(this.groups[group]).useMuon;
  }
}

/** One matrix of a range, whole or in part, and the settings of its update. */
interface ParameterUpdate {
  tensors: UpdateTensors;
  settings: UpdateSettings<MuonGroup>;
  place: ParameterPlace;
  index: number;
}

function adamUpdate(
  tensors: UpdateTensors,
  { step, groups }: UpdateSettings<MuonGroup>,
  kernels: UpdateKernels,
): void {
  const group = required(groups[tensors.group]);
  kernels.adamW({ ...adamTensors(tensors), ...adamScalars(group, step) });
}

const flat = (matrix: View): View => ({ ...matrix, shape: [numel(matrix.shape)], strides: [1] });
