// Collects the data of a profile, in the form of the JSON output.
import type { Work } from './flop-counts.js';
import type { ModuleNode, PassWork } from './module-tree.js';

/** The work and the time of one module, with its descendants. */
export interface ModuleProfile {
  /** Path relative to the parent, or "" for the model. */
  name: string;
  /** Class name. */
  type: string;
  /** Parameters with descendants. Tied parameters count once. */
  parameters: number;
  /** Forward calls. 0 if the parent has fused the module into its op. */
  calls: number;
  /** Work with descendants. */
  work: PassWork;
  /** The part of `work` outside of descendants. */
  own: PassWork;
  /** Device milliseconds of the forward calls. */
  latencyMs: number;
  /** The part of `latencyMs` outside of calls of other modules. */
  ownLatencyMs: number;
  /** Device milliseconds of recomputed calls. */
  recomputeMs: number;
  /** Fraction of the model's total, from 0 to 1. */
  share: { parameters: number; macs: number; latency: number };
  /** Profiles of the direct submodules. */
  children: ModuleProfile[];
}

/** The engine's data of a profiled step. */
export interface StepFacts {
  /** Global step, starting at 1. */
  step: number;
  /** Samples of the step on this device. */
  samples: number;
  /** Forward and backward passes of the step. */
  microBatches: number;
  /** Device milliseconds of each phase over all micro-batches, and of the whole step. */
  latencyMs: { forward: number; backward: number; step: number; total: number };
}

/** The profile of a model. */
export interface ModelProfile {
  /** Name of the device. */
  device: string;
  /** Elements of the model's parameters. */
  parameters: number;
  /** Total work. With an engine: all micro-batches of a step. */
  work: PassWork;
  /** The engine's data of the step; null without an engine. */
  engine: StepFacts | null;
  /** The tree of modules; its root is the model. */
  model: ModuleProfile;
}

const ratio = (part: number, total: number): number => (total > 0 ? part / total : 0);

/** Returns the data of `root`'s tree. Requires recorder.settle() first. */
export function createModelProfile(
  root: ModuleNode,
  device: string,
  engine: StepFacts | null,
): ModelProfile {
  const work = root.sumWork();
  const totals = {
    parameters: root.module.numParameters(),
    work: work.forward,
    ms: root.latencyMs,
  };
  return {
    device,
    parameters: totals.parameters,
    work,
    engine,
    model: createModuleProfile(root, totals),
  };
}

function createModuleProfile(
  node: ModuleNode,
  totals: { parameters: number; work: Work; ms: number },
): ModuleProfile {
  const parameters = node.module.numParameters();
  const work = node.sumWork();
  return {
    name: node.name,
    type: node.module.constructor.name,
    parameters,
    calls: node.calls,
    work,
    own: node.own,
    latencyMs: node.latencyMs,
    ownLatencyMs: node.latencyMs - node.innerMs,
    recomputeMs: node.recomputeMs,
    share: {
      parameters: ratio(parameters, totals.parameters),
      macs: ratio(work.forward.macs, totals.work.macs),
      latency: ratio(node.latencyMs, totals.ms),
    },
    children: node.children.map((child) => createModuleProfile(child, totals)),
  };
}
