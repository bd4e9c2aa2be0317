// Muon: matrices move along their orthogonalised moment, all other parameters by AdamW.
// Sources: Jordan et al. 2024, kellerjordan.github.io/posts/muon; DeepSpeed's Muon (MuonWithAuxAdam).
import { DsError } from '../errors.js';
import { numel, type View } from '../runtime/view.js';
import type { Tensor } from '../tensor/index.js';
import type { MuonGroupOptions } from './muon-groups.js';
import {
  firstMatrix,
  type NewtonSchulzMethod,
  type Orthogonalization,
  orthogonalize,
  workspaceSize,
} from './newton-schulz.js';
import {
  type Optimizer,
  type ParameterPlace,
  requirePlaces,
  type UpdateSettings,
  type UpdateTensors,
} from './optimizer.js';
import { makeGroups, type ParamGroup } from './param-groups.js';
import type { UpdateKernels } from './update-kernels.js';

export interface MuonGroup extends ParamGroup {
  /** True for matrices, false for what AdamW updates. */
  useMuon: boolean;
  /** Of Muon's groups. */
  momentum: number;
  /** Of AdamW's groups. */
  betas: readonly [number, number];
  /** Of AdamW's groups. */
  eps: number;
}

export interface MuonOptions {
  /** Rate of Muon's groups. Default 0.02. */
  lr?: number;
  /** Default 0.95. */
  momentum?: number;
  /** Orthogonalises a step ahead of the moment. Default true. */
  nesterov?: boolean;
  /** Decoupled, of all groups. Default 0. */
  weightDecay?: number;
  /** Default "gram", as DeepSpeed has it. */
  nsMethod?: NewtonSchulzMethod;
  /** Rate of AdamW's groups. Default 3e-4. */
  adamLr?: number;
  /** Default [0.9, 0.95]. */
  betas?: readonly [number, number];
  /** Default 1e-10. */
  eps?: number;
}

/**
 * Matrices: m = b m + (1 - b) g; u = b m + (1 - b) g (Nesterov); O = five Newton-Schulz steps on u / (||u|| + 1e-7);
 * p -= lr wd p; p -= lr sqrt(max(1, rows / columns)) O. More than two dims count as [first, all others]. The rest:
 * AdamW with bias correction. f32 models multiply in f32; 16-bit models in bf16 ("standard") or f16 ("gram"), as
 * DeepSpeed's code does, with f32 accumulation. Moments and master weights are f32 everywhere.
 * Under offload the products run on host threads, which is slow, and every unit waits for its own workspace.
 */
export class Muon implements Optimizer<MuonGroup> {
  readonly name = 'Muon';
  readonly groups: MuonGroup[];
  private readonly nesterov: boolean;
  private readonly method: NewtonSchulzMethod;

  /** Throws DS_ARGUMENT for a group without useMuon, a vector in a group that has it set, and as makeGroups. */
  constructor(params: Iterable<MuonGroupOptions>, options: MuonOptions = {}) {
    const { lr = 0.02, adamLr = 3e-4, momentum = 0.95, weightDecay = 0 } = options;
    const { betas = [0.9, 0.95], eps = 1e-10 } = options;
    const given = [...params].map((group, index) => {
      const members = [...requireRule(group, index).params];
      if (group.useMuon) requireMatrices(members, index);
      return { ...group, params: members, lr: group.lr ?? (group.useMuon ? lr : adamLr) };
    });
    const defaults = { lr, momentum, betas, eps, weightDecay, useMuon: true };
    this.groups = makeGroups<MuonGroup>('Muon', given, defaults);
    this.nesterov = options.nesterov ?? true;
    this.method = options.nsMethod ?? 'gram';
  }

  initialState(group: number): Record<string, number> {
    return this.usesMuon(group) ? { momentum_buffer: 0 } : { exp_avg: 0, exp_avg_sq: 0 };
  }

  initialScalars(group: number): Record<string, number> {
    return this.usesMuon(group) ? { norm: 0 } : {};
  }

  needsWholeParameters(group: number): boolean {
    return this.usesMuon(group);
  }

  /** Throws DS_CONFIG for a range of matrices that holds part of one. */
  update(
    tensors: UpdateTensors,
    settings: UpdateSettings<MuonGroup>,
    kernels: UpdateKernels,
  ): void {
    if (!this.usesMuon(tensors.group)) {
      adamUpdate(tensors, settings, kernels);
      return;
    }
    requirePlaces(this.name, tensors);
    const { group, grad, state, scalars, control, places, starts } = tensors;
    const { momentum: beta } = settings.groups[group] as MuonGroup;
    const rule = { beta, nesterov: this.nesterov, control };
    const momentum = state.momentum_buffer!;
    kernels.muonMomentum({ momentum, grad, starts, norms: scalars.norm!, ...rule });
    const sizes = places.map((place) => workspaceSize(this.shapeOf(place)));
    const workspace = kernels.workspace(grad, Math.max(0, ...sizes), this.dtypeFor(grad));
    places.forEach((place, index) => {
      if (place.numel > 0)
        this.updateMatrix({ tensors, settings, place, index, workspace }, kernels);
    });
    workspace.release();
  }

  private updateMatrix(
    { tensors, settings, place, index, workspace }: MatrixUpdate,
    kernels: UpdateKernels,
  ): void {
    const { group, master, grad, weight, state, scalars, control } = tensors;
    const { lr, weightDecay, momentum: beta } = settings.groups[group] as MuonGroup;
    const shape = this.shapeOf(place);
    const { rows, columns } = shape;
    kernels.muonDirection({
      momentum: part(state.momentum_buffer!, place),
      grad: part(grad, place),
      norm: part(scalars.norm!, { offset: index, numel: 1 }),
      direction: flat(firstMatrix(workspace, rows, columns)),
      control,
      beta,
      nesterov: this.nesterov,
    });
    kernels.muonApply({
      master: part(master, place),
      direction: flat(orthogonalize(workspace, shape, kernels)),
      weight: weight && part(weight, place),
      control,
      lr,
      weightDecay,
      scale: Math.sqrt(Math.max(1, rows / columns)),
    });
  }

  private shapeOf({ shape, numel: size }: ParameterPlace): Orthogonalization {
    const rows = shape[0] as number;
    return { rows, columns: size / Math.max(1, rows), method: this.method };
  }

  private dtypeFor({ dtype }: Tensor): 'f32' | 'f16' | 'bf16' {
    if (dtype === 'f32') return 'f32';
    return this.method === 'gram' ? 'f16' : 'bf16';
  }

  private usesMuon(group: number): boolean {
    return (this.groups[group] as MuonGroup).useMuon;
  }
}

/** One matrix of a range, and memory for its iteration. */
interface MatrixUpdate {
  tensors: UpdateTensors;
  settings: UpdateSettings<MuonGroup>;
  place: ParameterPlace;
  index: number;
  workspace: Tensor;
}

function adamUpdate(
  { group, master, grad, weight, state, control }: UpdateTensors,
  { step, groups }: UpdateSettings<MuonGroup>,
  kernels: UpdateKernels,
): void {
  const { lr, betas, eps, weightDecay } = groups[group] as MuonGroup;
  kernels.adamW({
    master,
    m: state.exp_avg!,
    v: state.exp_avg_sq!,
    grad,
    weight,
    control,
    lr,
    beta1: betas[0],
    beta2: betas[1],
    eps,
    weightDecay,
    correction1: 1 - betas[0] ** step,
    correction2: 1 - betas[1] ** step,
    decoupled: true,
  });
}

/** Elements of a flat tensor, borrowed. */
function part(tensor: Tensor, { offset, numel: size }: { offset: number; numel: number }): View {
  const { buffer, dtype } = tensor;
  return { buffer, dtype, offset: tensor.offset + offset, shape: [size], strides: [1] };
}

const flat = (matrix: View): View => ({ ...matrix, shape: [numel(matrix.shape)], strides: [1] });

function requireRule(group: MuonGroupOptions, index: number): MuonGroupOptions {
  if (typeof group === 'object' && 'params' in group && typeof group.useMuon === 'boolean') {
    return group;
  }
  throw new DsError({
    code: 'DS_ARGUMENT',
    op: `Muon group ${index}`,
    expected: 'a group { params: [...], useMuon: true or false }',
    got: 'one that does not say which rule it takes',
    hint: 'makeMuonGroups(model.namedParameters()) makes the groups by name and number of dims.',
  });
}

function requireMatrices(params: readonly Tensor[], index: number): void {
  const vector = params.find(({ shape }) => shape.length < 2);
  if (!vector) return;
  throw new DsError({
    code: 'DS_ARGUMENT',
    op: `Muon group ${index}`,
    expected: 'matrices where useMuon is true',
    got: `a parameter [${vector.shape.join(', ')}]`,
    hint: 'Put vectors into a group with useMuon: false.',
  });
}
