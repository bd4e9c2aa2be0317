// Module: parameters, buffers and child modules found in its fields; hooks and state dicts.

import { DsError } from '../errors.js';
import { type Device, deviceFor } from '../runtime/device.js';
import { type DType, isDType, isFloating } from '../runtime/dtype.js';
import * as kernels from '../runtime/kernels.generated.js';
import { readOptions } from '../runtime/options.js';
import { definePythonNames } from '../runtime/python-names.js';
import { requireType } from '../runtime/require-type.js';
import { held, noGrad, scope, Tensor } from '../tensor/index.js';
import { BackwardHooks, type Gradients, type ReplacedGradients } from './backward-hooks.js';
import { collectMembers, FieldTree, isBuffer } from './field-tree.js';
import { loadState } from './load-state.js';
import { outline } from './outline.js';
import { Parameter } from './parameter.js';
import type { PretrainedDescription } from './pretrained-description.js';

/**
 * Runs before forward, with its inputs. If it returns a list with at least one tensor, the list
 * replaces the inputs. A returned tensor becomes the only input. Other results are ignored.
 */
export type ForwardPreHook = (module: Module, inputs: readonly unknown[]) => unknown;
/**
 * Runs after forward, with its inputs and its output. A returned tensor, or a list with tensors,
 * replaces the output. Other results are ignored.
 */
export type ForwardHook = (module: Module, inputs: readonly unknown[], output: unknown) => unknown;
/** Runs when a call of a module ends with an exception. */
type FailureHook = (module: Module) => void;
/** Runs when backward reaches a module, before its forward's backward. */
export type FullBackwardPreHook = (module: Module, gradOutput: Gradients) => ReplacedGradients;
/** Runs when the gradients of a module's inputs are complete. */
export type FullBackwardHook = (
  module: Module,
  gradInput: Gradients,
  gradOutput: Gradients,
) => ReplacedGradients;
/** Runs before stateDict() returns the values of a module. */
export type StateDictPreHook = () => void;

/** Returns whether a hook's result is a replacement. Observing hooks often return other values. */
const isReplacement = (value: unknown): value is Tensor | readonly unknown[] =>
  value instanceof Tensor || (Array.isArray(value) && value.some((item) => item instanceof Tensor));

/** A module and its path below the root. */
export interface NamedModule {
  /** The path of fields to it, joined by dots. */
  name: string;
  /** The module itself. */
  module: Module;
}

/** A field that belongs to a module. */
export type Field = Parameter | Tensor | Module;

/**
 * The base class of models and layers, as in PyTorch. Fields that are a Parameter, a Tensor (a
 * buffer) or a Module belong to the module, under their field names. So do Modules and Parameters
 * in arrays, Sets, plain objects and Maps at any depth, as "field.key". Call it with call(), which
 * runs the hooks around forward().
 */
export abstract class Module {
  static {
    definePythonNames(Module, { label: 'Module', methodsOnly: true });
  }

  /**
   * Whether the module is in training mode, in which dropout drops values: see train() and eval().
   * Initially true.
   */
  training = true;
  /**
   * @internal Whether another rank of a pipeline has this module. The local model then excludes it
   * from modules, parameters and units. Names and their order stay the same as in the whole model,
   * so all ranks with a shared parameter list the same names.
   */
  isElsewhere = false;
  private readonly preHooks = new Set<ForwardPreHook>();
  private readonly hooks = new Set<ForwardHook>();
  private readonly failureHooks = new Set<FailureHook>();
  private readonly stateDictPreHooks = new Set<StateDictPreHook>();
  private backwardHooks: BackwardHooks<Module> | null = null;

  /** Computes the module. Call it with call(), which also runs hooks. */
  // biome-ignore lint/suspicious/noExplicitAny: subclasses declare their own inputs and result.
  abstract forward(...inputs: any[]): any;

  /** Calls forward(...inputs) with its hooks. */
  call(...inputs: InputsOf<this>): ReturnType<this['forward']> {
    try {
      let current: readonly unknown[] = inputs;
      for (const hook of this.preHooks) {
        const replacement = hook(this, current);
        if (isReplacement(replacement))
          current = replacement instanceof Tensor ? [replacement] : replacement;
      }
      const watched = this.backwardHooks?.start(this) ?? null;
      let output = this.forward(...(watched ? watched.wrapInputs(current) : current));
      for (const hook of this.hooks) {
        const replacement = hook(this, current, output);
        if (isReplacement(replacement)) output = replacement as typeof output;
      }
      return watched ? watched.wrapOutput(output) : output;
    } catch (error) {
      for (const hook of this.failureHooks) hook(this);
      throw error;
    }
  }

  /** @internal Whether call() runs hooks, which see inputs and outputs of forward(). */
  get hasHooks(): boolean {
    return this.preHooks.size + this.hooks.size > 0 || this.backwardHooks !== null;
  }

  /**
   * Calls `hook` before each forward of call(); see ForwardPreHook. Returns a function that removes
   * the hook. Source: PyTorch.
   */
  registerForwardPreHook(hook: ForwardPreHook): () => void {
    requireType('Module.registerForwardPreHook', hook, 'function');
    this.preHooks.add(hook);
    return () => this.preHooks.delete(hook);
  }

  /**
   * Calls `hook` after each forward of call(); see ForwardHook. Returns a function that removes the
   * hook. Source: PyTorch.
   */
  registerForwardHook(hook: ForwardHook): () => void {
    requireType('Module.registerForwardHook', hook, 'function');
    this.hooks.add(hook);
    return () => this.hooks.delete(hook);
  }

  /**
   * @internal Calls `hook` when a call ends with an exception. Returns a function that removes the
   * hook.
   */
  registerFailureHook(hook: FailureHook): () => void {
    this.failureHooks.add(hook);
    return () => this.failureHooks.delete(hook);
  }

  /**
   * Calls `hook` in every backward through a call of this module, when the gradients of its inputs
   * are complete. It receives one gradient per input in order: null for an input that needs none,
   * and only the first position for a tensor passed twice. It may return replacement gradients. If
   * no input requires a gradient, it runs when the gradients of the outputs have arrived. It does
   * not run for forwards under noGrad() or outside call(). Returns a function that removes the hook
   * for later calls.
   */
  registerFullBackwardHook(hook: FullBackwardHook): () => void {
    requireType('Module.registerFullBackwardHook', hook, 'function');
    this.backwardHooks ??= new BackwardHooks();
    return this.backwardHooks.addFull(hook);
  }

  /**
   * Calls `hook` before the module's backward, when the gradients of its outputs have arrived; it
   * may return replacement gradients.
   */
  registerFullBackwardPreHook(hook: FullBackwardPreHook): () => void {
    requireType('Module.registerFullBackwardPreHook', hook, 'function');
    this.backwardHooks ??= new BackwardHooks();
    return this.backwardHooks.addPre(hook);
  }

  /**
   * Calls `hook` once before each stateDict() of this module or an ancestor. Returns a function
   * that removes the hook.
   */
  registerStateDictPreHook(hook: StateDictPreHook): () => void {
    requireType('Module.registerStateDictPreHook', hook, 'function');
    this.stateDictPreHooks.add(hook);
    return () => this.stateDictPreHooks.delete(hook);
  }

  /** @internal Own fields in order; modules and parameters in collections as "field.key". */
  protected *fields(): Generator<[string, Field]> {
    for (const [name, value] of Object.entries(this)) {
      if (value instanceof Tensor || value instanceof Module) yield [name, value];
      else if (typeof value === 'object' && value !== null) {
        yield* collectMembers(name, value, isOwned);
      }
    }
  }

  /** @internal fields() of another module, for a module that replaces it. */
  protected static fieldsOf(module: Module): Generator<[string, Field]> {
    return module.fields();
  }

  /** @internal Whether call() does more than forward() when no gradients are recorded. */
  get isHooked(): boolean {
    return this.preHooks.size > 0 || this.hooks.size > 0;
  }

  get #tree(): FieldTree<Module> {
    return new FieldTree<Module>(this, (module) => module.fields());
  }

  /** Returns this module under the name "" and all modules below it, parents first, each once. */
  namedModules(): Generator<[string, Module]> {
    return this.#tree.modules();
  }

  /** Returns every parameter once, under its first name. */
  namedParameters(): Generator<[string, Parameter]> {
    return this.#tree.parameters();
  }

  /** Returns the further names of tied parameters, with their names in namedParameters(). */
  tiedNames(): Map<string, string> {
    return this.#tree.tiedNames();
  }

  /** Returns the buffers: tensors in fields that are not parameters. */
  namedBuffers(): Generator<[string, Tensor]> {
    return this.#tree.buffers();
  }

  /** Returns the parameters of this module and all modules below it, each once. */
  parameters(): Parameter[] {
    return Array.from(this.namedParameters(), ([, parameter]) => parameter);
  }

  /** Returns the tensors in its fields, and in nested fields, that are not parameters. */
  buffers(): Tensor[] {
    return Array.from(this.namedBuffers(), ([, buffer]) => buffer);
  }

  /** Returns the modules in this module's own fields, under the field names; each once. */
  namedChildren(): Generator<[string, Module]> {
    return this.#tree.children();
  }

  /** Returns the modules directly below this module. */
  children(): Module[] {
    return Array.from(this.namedChildren(), ([, module]) => module);
  }

  /** Returns this module and all modules below it, parents first, each once. */
  modules(): Module[] {
    return Array.from(this.namedModules(), ([, module]) => module);
  }

  /**
   * Calls `body` with every module, children before their parents, as in PyTorch; for example to
   * initialize them.
   */
  apply(body: (module: Module) => void): this {
    requireType('Module.apply', body, 'function');
    const seen = new Set<Module>();
    const visit = (module: Module): void => {
      if (seen.has(module)) return;
      seen.add(module);
      for (const child of module.children()) visit(child);
      body(module);
    };
    this.modules(); // Throws where a module is inside itself.
    visit(this);
    return this;
  }

  /**
   * Returns the number of elements of all parameters, of trainable parameters (`trainable` true),
   * or of frozen parameters (false). Tied parameters count once.
   */
  numParameters(given: { trainable?: boolean } = {}): number {
    const { trainable } = readOptions('numParameters', given, { trainable: true });
    return this.parameters()
      .filter(({ requiresGrad }) => trainable === undefined || requiresGrad === trainable)
      .reduce((sum, { numel }) => sum + numel, 0);
  }

  /**
   * Drops the gradients of all parameters. Throws DS_ARGUMENT if an engine owns them: it drops them
   * itself.
   */
  zeroGrad(): void {
    for (const parameter of this.parameters()) {
      parameter.requireWritable('Module.zeroGrad');
      parameter.grad?.dispose();
      parameter.grad = null;
    }
  }

  /**
   * Sets whether all parameters require gradients: false freezes them. Before initialize(). Throws
   * DS_ARGUMENT after it.
   */
  requiresGrad_(on = true): this {
    requireType('Module.requiresGrad_', on, 'boolean');
    for (const parameter of this.parameters()) {
      parameter.requireWritable('Module.requiresGrad_');
      parameter.requireGrad(on);
    }
    return this;
  }

  /**
   * Returns the modules that form units of parameters. Default: the elements of every array of
   * modules. Other parameters belong to the root.
   */
  units(): NamedModule[] {
    return Array.from(this.#tree.elements(), ([name, module]) => ({ name, module }));
  }

  /**
   * Describes this model to other libraries, for exports (see PretrainedDescription). Default:
   * null, not described.
   */
  describe(): PretrainedDescription | null {
    return null;
  }

  /**
   * Returns the tree of modules with shapes and numbers of parameters, as console.log() shows it.
   * Reads no values.
   */
  toString(): string {
    return outline<Module>(this, (module) => module.fields());
  }

  [Symbol.for('nodejs.util.inspect.custom')](depth: number): string {
    return depth < 0 ? `[${this.constructor.name}]` : this.toString();
  }

  /** Sets `training` of this module and all modules below it. */
  train(on = true): this {
    requireType('Module.train', on, 'boolean');
    for (const [, module] of this.namedModules()) module.training = on;
    return this;
  }

  /** Ends the training mode, for example for validation: train(false). */
  eval(): this {
    return this.train(false);
  }

  /** Returns the parameters and buffers by name: the tensors themselves, not copies. */
  stateDict(): Record<string, Tensor> {
    const hooks = new Set<StateDictPreHook>();
    for (const [, module] of this.namedModules()) {
      for (const hook of module.stateDictPreHooks) hooks.add(hook);
    }
    for (const hook of hooks) hook();
    return Object.fromEntries([...this.namedParameters(), ...this.namedBuffers()]);
  }

  /**
   * Copies values into parameters and buffers, converted to their dtype and device. `strict`
   * (default) rejects missing and unknown names; a tied parameter may appear under one or all of
   * its names. Throws DS_CHECKPOINT with the names, DS_ARGUMENT for unknown options and values that
   * are not tensors.
   */
  loadStateDict(state: Record<string, Tensor>, options: { strict?: boolean } = {}): void {
    loadState(this, state, options);
  }

  /**
   * Moves every buffer to `device`, and floating buffers to `dtype` if given. initialize() calls
   * it.
   */
  moveBuffers(device: Device, dtype?: DType): void {
    for (const [, module] of this.namedModules()) {
      for (const [name, field] of module.fields()) {
        if (!isBuffer(field)) continue;
        const dtypeOfBuffer = dtype && isFloating(field.dtype) ? dtype : field.dtype;
        if (field.device === device && field.dtype === dtypeOfBuffer) continue;
        const moved = held(() => Tensor.empty(field.shape, dtypeOfBuffer, device));
        noGrad(() => scope(() => kernels.copy({ in: field.to(device), out: moved })));
        (module as unknown as Record<string, Tensor>)[name] = moved;
      }
    }
  }

  /**
   * Moves parameters to a device or a floating dtype, or both, and buffers to the device. Call it
   * before initialize(). Throws DS_DTYPE for an integer dtype, DS_DEVICE for other values,
   * DS_ARGUMENT if an engine owns the model.
   */
  to(...targets: (DType | Device | string)[]): this {
    const parameters = this.parameters();
    for (const parameter of parameters) parameter.requireWritable('Module.to');
    const target = readDestination(targets);
    if (target.device) this.moveBuffers(target.device);
    for (const parameter of parameters) {
      parameter.moveTo(target.device ?? parameter.device, target.dtype ?? parameter.dtype);
    }
    return this;
  }
}

/** Returns the last device and the last dtype among the targets of to(). */
function readDestination(targets: readonly unknown[]): { device?: Device; dtype?: DType } {
  const found: { device?: Device; dtype?: DType } = {};
  for (const target of targets) {
    if (!isDType(target)) found.device = deviceFor('Module.to', target);
    else if (isFloating(target)) found.dtype = target;
    else {
      const expected = 'a floating dtype: f32, f16, bf16, f64';
      throw new DsError({ code: 'DS_DTYPE', op: 'Module.to', expected, got: target });
    }
  }
  return found;
}

/**
 * Returns whether an item of a collection belongs to a module; tensors in collections are not
 * buffers.
 */
const isOwned = (item: unknown): item is Parameter | Module =>
  item instanceof Module || item instanceof Parameter;

/** The inputs of a module's forward. */
type InputsOf<M extends Module> = Parameters<M['forward']>;
