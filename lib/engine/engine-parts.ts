// The types of an engine's parts. setup/build-engine.ts creates the parts.
import type { ResolvedConfig } from '../../types/config.js';
import type { JsonObject } from '../../types/json.js';
import type { CheckpointWorld } from '../checkpoint/index.js';
import type { Module } from '../nn/module.js';
import type { LossScaler } from '../optim/loss-scale.js';
import type { Optimizer } from '../optim/optimizer.js';
import type { ScheduleSet } from '../optim/schedule-set.js';
import type { Device } from '../runtime/device.js';
import type { OptimizerState } from '../zero/optimizer-state.js';
import type { ZeroStages } from '../zero/stage.js';
import type { Unit } from '../zero/unit.js';
import type { Ranks } from './ranks.js';
import type { ReleaseStack } from './release-stack.js';
import type { PipelinePlan } from './setup/pipeline.js';
import type { BatchSizes } from './step/batch-sizes.js';
import type { Curriculum } from './step/curriculum.js';
import type { GradientCollector } from './step/gradient-collector.js';
import type { InputCast } from './step/inputs.js';
import type { LayerDropping } from './step/layer-drop.js';
import type { StepControl } from './step/step-control.js';
import type { Progress, StepDecisions, StopRequest, UpdatePlanner } from './step/step-decisions.js';
import type { UnitHooks } from './step/unit-hooks.js';
import type { StepWatch } from './watch/step-watch.js';
import type { ZeroGroups } from './zero-groups.js';

/** Settings that follow from the configuration and the caller's options. */
export interface Decisions {
  module: Module;
  config: ResolvedConfig;
  device: Device;
  optimizer: Optimizer;
  schedules: ScheduleSet;
  scaler: LossScaler;
  batch: BatchSizes;
  /** Converts the arguments of forward() to the arguments of the model. */
  inputs: InputCast;
  curriculum: Curriculum;
  layerDrop: LayerDropping;
  progress: Progress;
  /** Null if the model is not a pipeline. */
  plan: PipelinePlan | null;
}

/** The units, and the objects that own weights, gradients and optimizer state. */
export interface OwnedParts {
  ranks: Ranks;
  /** The units in forward order. */
  units: readonly Unit[];
  /** The group of ranks that shards each parameter. */
  zeroGroups: ZeroGroups;
  stage: ZeroStages;
  state: OptimizerState;
}

/** The objects that run a step. */
export interface StepParts {
  planner: UpdatePlanner;
  control: StepControl;
  stepDecisions: StepDecisions;
  gradients: GradientCollector;
  hooks: UnitHooks;
  watch: StepWatch;
  stop: StopRequest;
}

export interface EngineParts extends Decisions, OwnedParts, StepParts {
  /** Where the ranks synchronize when they save and load checkpoints. */
  meeting: CheckpointWorld;
  /** Releases all parts. The model keeps its weights. */
  owned: ReleaseStack;
}

/**
 * An engine as its own parts see it. Saving, loading and parameter access use this interface, so
 * they do not import the class Engine.
 */
export interface EngineCore {
  /** @internal */
  readonly parts: EngineParts;
  readonly module: Module;
  readonly device: Device;
  readonly config: ResolvedConfig;
  readonly progress: Progress;
  readonly optimizer: Optimizer;
  readonly globalRank: number;
  readonly worldSize: number;
  readonly globalSteps: number;
  /** By name: objects with state that checkpoints store too. */
  readonly companions: ReadonlyMap<string, Stateful>;
  synchronize(): void;
  flushMonitors(): Promise<void>;
}

/**
 * An object with state that a checkpoint stores next to the engine, such as the loader of its
 * training data.
 */
export interface Stateful {
  /** Returns the state to save. */
  stateDict(): JsonObject;
  /**
   * Restores a result of stateDict(). Throws DS_CHECKPOINT if the state is of another kind of
   * object.
   */
  loadStateDict(state: JsonObject): void;
}
