// What a profile says, as plain data: the form of the JSON output.
import type { Work } from './flop-counts.js';
import type { ModuleNode, PassWork } from './module-tree.js';

/** What one module, and what lies below it, did and took. */
export interface ModuleProfile {
  /** Path below the parent; the model's own is "". */
  name: string;
  /** Class name. */
  type: string;
  /** Those below it included; tied ones count once. */
  parameters: number;
  /** Forward calls; 0 for a module that its parent has fused into an op of its own. */
  calls: number;
  /** Work of the module and those below it. */
  work: PassWork;
  /** Of it, outside the modules below. */
  own: PassWork;
  /** Device milliseconds of the forward calls. */
  latencyMs: number;
  /** Of it, outside calls of other modules. */
  ownLatencyMs: number;
  /** Device milliseconds of calls that recomputed activations. */
  recomputeMs: number;
  /** Of the model's, 0 to 1. */
  share: { parameters: number; macs: number; latency: number };
  /** Of the modules below it. */
  children: ModuleProfile[];
}

/** What the engine knows of a profiled step. */
export interface StepFacts {
  /** Global step, from 1. */
  step: number;
  /** In the step, on this device. */
  samples: number;
  /** Forward and backward passes of the step. */
  microBatches: number;
  /**
   * Device milliseconds: each phase, all micro-batches together, and from the first to the last.
   */
  latencyMs: { forward: number; backward: number; step: number; total: number };
}

/** What a profiled run of a model did and took. */
export interface ModelProfile {
  /** Name of the device. */
  device: string;
  /** Elements of the model's parameters. */
  parameters: number;
  /** Of everything that ran: a whole step under an engine, all micro-batches together. */
  work: PassWork;
  /** null when no engine ran the model. */
  engine: StepFacts | null;
  /** By module, from the model down. */
  model: ModuleProfile;
}

const ratio = (part: number, whole: number): number => (whole > 0 ? part / whole : 0);

/** The numbers of `root`'s tree; its latencies must be settled. */
export function modelProfile(
  root: ModuleNode,
  device: string,
  engine: StepFacts | null,
): ModelProfile {
  const work = root.total();
  const whole = { parameters: root.module.numParameters(), work: work.forward, ms: root.latencyMs };
  return {
    device,
    parameters: whole.parameters,
    work,
    engine,
    model: moduleProfile(root, whole),
  };
}

function moduleProfile(
  node: ModuleNode,
  whole: { parameters: number; work: Work; ms: number },
): ModuleProfile {
  const parameters = node.module.numParameters();
  const work = node.total();
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
      parameters: ratio(parameters, whole.parameters),
      macs: ratio(work.forward.macs, whole.work.macs),
      latency: ratio(node.latencyMs, whole.ms),
    },
    children: node.children.map((child) => moduleProfile(child, whole)),
  };
}
