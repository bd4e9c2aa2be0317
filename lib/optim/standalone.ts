// StandaloneOptimizer: the base class of all optimizers. It adds step() and zeroGrad() for training
// without an engine.

import { DsError } from '../errors.js';
import { argumentError } from '../runtime/input-errors.js';
import { definePythonNames } from '../runtime/python-names.js';
import { requireType } from '../runtime/require-type.js';
import { describe } from '../runtime/view.js';
import { noGrad, scope, type Tensor, trainerOf } from '../tensor/index.js';
import { markChanged } from '../tensor/tape.js';
import type { DeclaredState } from './declared-state.js';
import type { Optimizer, UpdateSettings, UpdateTensors } from './optimizer.js';
import { OwnState } from './own-state.js';
import { type ParamGroup, requireHyperparameters } from './param-groups.js';
import { type OptimizerStateDict, readState, stateOf } from './state-dict.js';
import { deviceKernels, type UpdateKernels } from './update-kernels.js';

/**
 * An optimizer for training without an engine, like torch.optim.Optimizer: `loss.backward();
 * opt.step(); opt.zeroGrad()`. Updates run on the device of each parameter, with the kernels of
 * engines. For f32 parameters, an engine gives the same results bit for bit. An f16 or bf16
 * parameter has an f32 master weight; between steps, other code may still change the parameter.
 *
 * The first step() with a gradient creates the state of a parameter. Each parameter counts its own
 * updates. After initialize(), the engine owns the optimizer: engine.step() updates, and the
 * methods here throw.
 */
export abstract class StandaloneOptimizer<Group extends ParamGroup = ParamGroup>
  implements Optimizer<Group>
{
  static {
    const others = { param_groups: 'groups', add_param_group: 'groups of the constructor' };
    definePythonNames(StandaloneOptimizer, { label: 'optimizer', others });
  }

  /** Name in configurations, checkpoints and errors. */
  abstract readonly name: string;
  /** The parameter groups. Learning rates and other hyperparameters may change between steps. */
  abstract readonly groups: Group[];
  private readonly states = new Map<Tensor, OwnState>();
  private readonly kernels = deviceKernels();

  abstract declareState(group: number, shape: readonly number[]): DeclaredState;

  abstract update(
    tensors: UpdateTensors,
    settings: UpdateSettings<Group>,
    kernels: UpdateKernels,
  ): void;

  sumsPerRound?(group: number, shape: readonly number[]): readonly number[];

  /**
   * Updates every parameter that has a gradient. `closure` computes the loss and calls backward().
   * It runs first, and step() returns its result. Non-finite gradients are applied as they are;
   * nn.clipGradNorm() reports them.
   *
   * If it throws, nothing has changed:
   *
   * - DS_ARGUMENT: invalid hyperparameters, or parameters of an engine.
   * - DS_DTYPE: f64 parameters. DS_SHAPE: parameters that are not contiguous.
   * - DS_DEVICE: a parameter that moved since its first step.
   */
  step<Loss = void>(closure?: () => Loss): Loss | undefined {
    if (closure !== undefined) requireType(`${this.name}.step`, closure, 'function');
    const result = closure?.();
    const members = [...this.members()];
    for (const { parameter } of members) this.requireFree('step', parameter);
    const withGradient = members.filter(({ parameter }) => parameter.grad !== null);
    for (const { parameter } of withGradient) this.requireReady(parameter);
    requireHyperparameters(this.name, this.groups);
    noGrad(() => {
      for (const { parameter, group, index } of withGradient) this.stepOf(parameter, group, index);
    });
    return result;
  }

  /**
   * Drops the gradients of all parameters, like zero_grad(). Throws DS_ARGUMENT for parameters of
   * an engine.
   */
  zeroGrad(): void {
    for (const { parameter } of this.members()) {
      this.requireFree('zeroGrad', parameter);
      parameter.grad?.dispose();
      parameter.grad = null;
    }
  }

  /**
   * Returns the hyperparameters of the groups, and by parameter its state and its number of
   * updates. Parameters are numbered over all groups. The tensors are views of the state in their
   * declared shapes, not copies. `master` is f32 and exists for 16-bit parameters. A parameter that
   * had no gradient yet has no entry.
   */
  stateDict(): OptimizerStateDict {
    return stateOf(this.groups, this.states);
  }

  /**
   * Loads a result of stateDict() of an optimizer with the same class and groups. Copies the
   * tensors to the device of each parameter. A parameter without saved state loses its state.
   *
   * Throws DS_CHECKPOINT if groups, names or shapes differ, and DS_ARGUMENT for parameters of an
   * engine. If it throws, nothing has changed.
   */
  loadStateDict(state: OptimizerStateDict): void {
    for (const { parameter } of this.members()) this.requireFree('loadStateDict', parameter);
    readState(this, state, (parameter, group, index) => this.stateFor(parameter, group, index));
    for (const { parameter, index } of this.members()) {
      if (state.state[index]) continue;
      this.states.get(parameter)?.dispose();
      this.states.delete(parameter);
    }
  }

  /** Whether a step has created state. An engine would drop it. */
  get hasStepped(): boolean {
    return this.states.size > 0;
  }

  /**
   * Frees the state. The next step() creates new state. Garbage collection of the optimizer frees
   * it too.
   */
  dispose(): void {
    for (const state of this.states.values()) state.dispose();
    this.states.clear();
  }

  [Symbol.dispose](): void {
    this.dispose();
  }

  private *members(): Generator<{ parameter: Tensor; group: number; index: number }> {
    let index = 0;
    for (const [group, { params }] of this.groups.entries()) {
      for (const parameter of params) yield { parameter, group, index: index++ };
    }
  }

  private stepOf(parameter: Tensor, group: number, index: number): void {
    const state = this.stateFor(parameter, group, index);
    scope(() => {
      const tensors = state.tensorsOf(parameter, group);
      this.update(tensors, { step: ++state.step, groups: this.groups }, this.kernels);
    });
    markChanged(parameter);
  }

  private stateFor(parameter: Tensor, group: number, index: number): OwnState {
    const known = this.states.get(parameter);
    if (known) return known;
    const created = OwnState.of(this, parameter, { group, name: String(index) });
    this.states.set(parameter, created);
    return created;
  }

  private requireReady(parameter: Tensor): void {
    const { dtype, device } = parameter;
    const op = `${this.name}.step`;
    const got = describe(parameter);
    if (dtype === 'f64') {
      const hint = "Convert it with model.to('f32').";
      throw new DsError({ code: 'DS_DTYPE', op, expected: 'f32, f16 or bf16', got, hint });
    }
    if (!parameter.isContiguous) {
      const expected = 'a contiguous parameter';
      throw new DsError({ code: 'DS_SHAPE', op, expected, got, hint: 'Use a clone() of it.' });
    }
    const created = this.states.get(parameter)?.created;
    if (!created || (created.device === device && created.dtype === dtype)) return;
    throw new DsError({
      code: 'DS_DEVICE',
      op,
      expected: `a parameter ${created.dtype} on ${created.device.name}, where its state is`,
      got: `${dtype} on ${device.name}`,
      hint: 'Move the model before the first step, or call dispose() to drop the state.',
    });
  }

  private requireFree(method: string, parameter: Tensor): void {
    if (!trainerOf(parameter)) return;
    throw argumentError(
      `${this.name}.${method}`,
      'parameters without an engine',
      'parameters owned by an engine of initialize()',
      'Call engine.step(), engine.zeroGrad(), engine.saveCheckpoint() and engine.loadCheckpoint() instead.',
    );
  }
}
