// Optimizers that step by themselves: the update kernels over parameters that no engine has taken
// over.
import { DsError } from '../errors.js';
import { answerPythonNames } from '../runtime/python-names.js';
import { requireType } from '../runtime/require-type.js';
import { describe } from '../runtime/view.js';
import { noGrad, scope, type Tensor, trainerOf } from '../tensor/index.js';
import { noteChanged } from '../tensor/tape.js';
import type { DeclaredState } from './declared-state.js';
import type { Optimizer, UpdateSettings, UpdateTensors } from './optimizer.js';
import { OwnState } from './own-state.js';
import { type ParamGroup, requireHyperparameters } from './param-groups.js';
import { type OptimizerStateDict, readState, stateOf } from './state-dict.js';
import { deviceKernels, type UpdateKernels } from './update-kernels.js';

/**
 * An optimizer for training without an engine, as torch.optim.Optimizer: `loss.backward();
 * opt.step(); opt.zeroGrad()`. Updates run on each parameter's device by the kernels that engines
 * use, with the same bits for f32 parameters. f16 and bf16 parameters have f32 master weights,
 * which take over what is written into the parameter between steps. State is made when a parameter
 * has its first gradient, and counts the updates of that parameter alone. An optimizer that is
 * given to initialize() is the engine's: engine.step() then takes the steps, and the methods here
 * refuse.
 */
export abstract class StandaloneOptimizer<Group extends ParamGroup = ParamGroup>
  implements Optimizer<Group>
{
  static {
    const others = { param_groups: 'groups', add_param_group: 'groups of the constructor' };
    answerPythonNames(StandaloneOptimizer, { label: 'optimizer', others });
  }

  /** What it is called in configurations, checkpoints and errors. */
  abstract readonly name: string;
  /** Its parameter groups; rates and other hyperparameters may be changed between steps. */
  abstract readonly groups: Group[];
  private readonly kept = new Map<Tensor, OwnState>();
  private readonly kernels = deviceKernels();

  abstract declareState(group: number, shape: readonly number[]): DeclaredState;

  abstract update(
    tensors: UpdateTensors,
    settings: UpdateSettings<Group>,
    kernels: UpdateKernels,
  ): void;

  sumsPerRound?(group: number, shape: readonly number[]): readonly number[];

  /**
   * Updates every parameter that has a gradient; the others stay as they are. With `closure`, which
   * computes the loss and calls backward(), runs that first and returns its result. A gradient that
   * is not finite is applied as it is: nn.clipGradNorm() tells. Throws, before anything has
   * changed, DS_ARGUMENT for hyperparameters that were set to what is none and for parameters that
   * an engine has, DS_DTYPE for f64 ones, DS_SHAPE for strided ones, DS_DEVICE for one that has
   * moved since its first step.
   */
  step<Loss = void>(closure?: () => Loss): Loss | undefined {
    if (closure !== undefined) requireType(`${this.name}.step`, closure, 'function');
    const result = closure?.();
    const members = [...this.members()];
    for (const { parameter } of members) this.requireFree('step', parameter);
    const found = members.filter(({ parameter }) => parameter.grad !== null);
    for (const { parameter } of found) this.requireReady(parameter);
    requireHyperparameters(this.name, this.groups);
    noGrad(() => {
      for (const { parameter, group, index } of found) this.stepOf(parameter, group, index);
    });
    return result;
  }

  /**
   * Drops the gradients of all parameters, as zero_grad() does. Throws DS_ARGUMENT for parameters
   * that an engine has.
   */
  zeroGrad(): void {
    for (const { parameter } of this.members()) {
      this.requireFree('zeroGrad', parameter);
      parameter.grad?.dispose();
      parameter.grad = null;
    }
  }

  /**
   * The hyperparameters of the groups, and the state of each parameter under its number over all
   * groups: the tensors themselves in the shapes that the optimizer declares, the parameter's for
   * moments, not copies; `master`, f32, for 16-bit parameters; and its number of updates. A
   * parameter without a gradient so far has none.
   */
  stateDict(): OptimizerStateDict {
    return stateOf(this.groups, this.kept);
  }

  /**
   * Takes over what stateDict() of an optimizer of the same kind and groups gave: hyperparameters,
   * copies of its tensors, converted to each parameter's device, and numbers of updates. A
   * parameter that had no state then has none again. Throws DS_CHECKPOINT where groups, names or
   * shapes differ, before anything has changed; DS_ARGUMENT for parameters that an engine has.
   */
  loadStateDict(state: OptimizerStateDict): void {
    for (const { parameter } of this.members()) this.requireFree('loadStateDict', parameter);
    readState(this, state, (parameter, group, index) => this.stateFor(parameter, group, index));
    for (const { parameter, index } of this.members()) {
      if (state.state[index]) continue;
      this.kept.get(parameter)?.dispose();
      this.kept.delete(parameter);
    }
  }

  /** Whether there is state that an engine would not know of. */
  get hasStepped(): boolean {
    return this.kept.size > 0;
  }

  /**
   * Frees the state; the next step() starts anew. Without it the memory returns when the optimizer
   * is collected.
   */
  dispose(): void {
    for (const state of this.kept.values()) state.dispose();
    this.kept.clear();
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
    noteChanged(parameter);
  }

  private stateFor(parameter: Tensor, group: number, index: number): OwnState {
    const known = this.kept.get(parameter);
    if (known) return known;
    const made = OwnState.of(this, parameter, { group, name: String(index) });
    this.kept.set(parameter, made);
    return made;
  }

  private requireReady(parameter: Tensor): void {
    const { dtype, device } = parameter;
    const op = `${this.name}.step`;
    const got = describe(parameter);
    if (dtype === 'f64') {
      const hint = "model.to('f32') makes it one.";
      throw new DsError({ code: 'DS_DTYPE', op, expected: 'f32, f16 or bf16', got, hint });
    }
    if (!parameter.isContiguous) {
      const expected = 'a contiguous parameter';
      throw new DsError({ code: 'DS_SHAPE', op, expected, got, hint: 'Take a clone() of it.' });
    }
    const home = this.kept.get(parameter)?.home;
    if (!home || (home.device === device && home.dtype === dtype)) return;
    throw new DsError({
      code: 'DS_DEVICE',
      op,
      expected: `a parameter ${home.dtype} on ${home.device.name}, where its state is`,
      got: `${dtype} on ${device.name}`,
      hint: 'Move the model before the first step, or dispose() of the state to start anew.',
    });
  }

  private requireFree(method: string, parameter: Tensor): void {
    if (!trainerOf(parameter)) return;
    throw new DsError({
      code: 'DS_ARGUMENT',
      op: `${this.name}.${method}`,
      expected: 'parameters that no engine has',
      got: 'those of a model that initialize() has taken over',
      hint: 'Call engine.step(), engine.zeroGrad(), engine.saveCheckpoint() and engine.loadCheckpoint() instead.',
    });
  }
}
