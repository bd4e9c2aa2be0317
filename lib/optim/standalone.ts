// StandaloneOptimizer: training without an engine, on parameters that no engine owns.

import { DsError } from '../errors.js';
import { argumentError } from '../runtime/input-errors.js';
import { answerPythonNames } from '../runtime/python-names.js';
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
 * opt.step(); opt.zeroGrad()`. Updates run on each parameter's device with the kernels of engines,
 * and with the same bits for f32 parameters. f16 and bf16 parameters have f32 master weights, which
 * adopt external writes to the parameter between steps. State is created at a parameter's first
 * gradient, and counts the updates of that parameter only. After initialize(), the engine owns the
 * optimizer: engine.step() updates, and the methods here throw.
 */
export abstract class StandaloneOptimizer<Group extends ParamGroup = ParamGroup>
  implements Optimizer<Group>
{
  static {
    const others = { param_groups: 'groups', add_param_group: 'groups of the constructor' };
    answerPythonNames(StandaloneOptimizer, { label: 'optimizer', others });
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
   * Updates every parameter with a gradient; others stay unchanged. `closure` computes the loss and
   * calls backward(); it runs first, and its result is returned. Non-finite gradients are applied
   * unchanged; nn.clipGradNorm() reports them.
   *
   * Throws before any change:
   *
   * - DS_ARGUMENT: invalid hyperparameters, or parameters of an engine.
   * - DS_DTYPE: f64 parameters. DS_SHAPE: strided parameters.
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
   * Returns the hyperparameters of the groups, and the state of each parameter by its number over
   * all groups. The tensors are the state itself, not copies, in the declared shapes; `master` is
   * f32, for 16-bit parameters. The number of updates is included. A parameter without a gradient
   * so far has no entry.
   */
  stateDict(): OptimizerStateDict {
    return stateOf(this.groups, this.states);
  }

  /**
   * Loads a result of stateDict() of an optimizer of the same class and groups. Copies its tensors
   * to each parameter's device. A parameter without saved state loses its state.
   *
   * Throws DS_CHECKPOINT before any change if groups, names or shapes differ; DS_ARGUMENT for
   * parameters of an engine.
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

  /** Whether there is state that an engine would drop. */
  get hasStepped(): boolean {
    return this.states.size > 0;
  }

  /**
   * Frees the state; the next step() creates new state. Without dispose(), garbage collection of
   * the optimizer frees it.
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
    const home = this.states.get(parameter)?.home;
    if (!home || (home.device === device && home.dtype === dtype)) return;
    throw new DsError({
      code: 'DS_DEVICE',
      op,
      expected: `a parameter ${home.dtype} on ${home.device.name}, where its state is`,
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
