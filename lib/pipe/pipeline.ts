// Pipeline: divides a model's layers into stages, and runs the layers of a stage.

import { DsError } from '../errors.js';
import { Embedding } from '../nn/embedding.js';
import type { Module } from '../nn/module.js';
import { Parameter } from '../nn/parameter.js';
import { required } from '../runtime/required.js';
import { numel } from '../runtime/view.js';
import {
  checkpoint,
  getRandomState,
  isGradEnabled,
  type RandomState,
  setRandomState,
  Tensor,
} from '../tensor/index.js';
import { rankOf } from './action.js';
import { type Pipelined, type PipelineLayer, requireValues, type Values } from './layers.js';
import { balanceStages } from './partition.js';
import { parsePattern } from './partition-method.js';
import type { PipelineOptions } from './pipeline-module.js';

/**
 * Number of random offsets that each forward of a layer reserves. So random numbers do not depend
 * on a rank's order of layers.
 */
const DRAWS = 4096;

/** The division of a model into stages of `place.ranks` ranks. */
export class Pipeline {
  /** The layers of the whole model. */
  readonly layers: readonly PipelineLayer[];
  /** Stage s has the layers from starts[s] to starts[s + 1] - 1. */
  readonly starts: readonly number[];
  /** Parameters that several ranks of the pipeline have, with these ranks. */
  readonly tied: ReadonlyMap<Parameter, readonly number[]>;
  /** Parameters and buffers of this rank that an earlier rank has too. */
  private readonly copies: ReadonlySet<Tensor>;
  private base: RandomState = { seed: 0, offset: 0 };
  private batches = 0;

  constructor(
    readonly model: Module & Pipelined,
    /** This rank's index among the ranks of the pipeline, and the number of ranks. */
    readonly place: { rank: number; ranks: number },
    /** Number of stages of each rank. */
    stagesPerRank: number,
    private readonly options: PipelineOptions,
  ) {
    this.layers = model.pipelineLayers();
    const { partitionMethod = 'parameters' } = options;
    const weights = this.layers.map((layer) => computeWeight(layer, partitionMethod));
    this.starts = balanceStages(weights, place.ranks * stagesPerRank);
    const shared = [...this.findRanks()].filter(([, ranks]) => ranks.length > 1);
    const parameters = shared.filter(([tensor]) => tensor instanceof Parameter);
    this.tied = new Map(parameters as [Parameter, number[]][]);
    const isCopy = (ranks: readonly number[]): boolean => required(ranks[0]) < place.rank;
    this.copies = new Set(shared.flatMap(([tensor, ranks]) => (isCopy(ranks) ? [tensor] : [])));
  }

  /**
   * Returns whether an earlier rank of the pipeline has the parameter or buffer too. Only the first
   * rank saves it.
   */
  isCopy(tensor: Tensor): boolean {
    return this.copies.has(tensor);
  }

  /** Returns the ranks that have each parameter and buffer, in the order of the model. */
  private findRanks(): Map<Tensor, number[]> {
    const ranksOfTensors = new Map<Tensor, number[]>();
    const { model } = this;
    for (const tensor of [...model.parameters(), ...model.buffers()])
      ranksOfTensors.set(tensor, []);
    for (let rank = 0; rank < this.place.ranks; ++rank) {
      const modules = [...this.modulesOf(this.stagesOf(rank))];
      const rankTensors = modules.flatMap((module) => [
        ...module.parameters(),
        ...module.buffers(),
      ]);
      for (const tensor of new Set(rankTensors)) ranksOfTensors.get(tensor)?.push(rank);
    }
    return ranksOfTensors;
  }

  /** Number of stages of the model. */
  get stages(): number {
    return this.starts.length - 1;
  }

  /** Indices of this rank's stages. */
  get ownStages(): number[] {
    return this.stagesOf(this.place.rank);
  }

  /** Returns the indices of the stages of rank `rank` of the pipeline. */
  stagesOf(rank: number): number[] {
    const { ranks } = this.place;
    return Array.from({ length: this.stages }, (_, stage) => stage).filter(
      (stage) => rankOf(stage, ranks) === rank,
    );
  }

  /** Returns the modules of some stages, including nested modules. */
  modulesOf(stages: readonly number[]): Set<Module> {
    const roots = stages.flatMap((stage) => this.layersOf(stage).flatMap(({ modules }) => modules));
    return new Set(roots.flatMap((module) => module.modules()));
  }

  /**
   * Excludes from the model the modules that rank `rank` does not have. The returned function
   * includes them again.
   */
  hideOtherStages(rank = this.place.rank): () => void {
    const kept = this.modulesOf(this.stagesOf(rank));
    const all = this.modulesOf(Array.from({ length: this.stages }, (_, stage) => stage));
    const others = [...all].filter((module) => !kept.has(module));
    for (const module of others) module.isElsewhere = true;
    return () => {
      for (const module of others) module.isElsewhere = false;
    };
  }

  /**
   * Starts a batch of `micros` micro-batches. Random numbers continue where the previous batch
   * ended.
   */
  beginBatch(micros: number): void {
    this.base = getRandomState();
    this.batches += micros;
    const { seed, offset } = this.base;
    setRandomState({ seed, offset: offset + micros * this.layers.length * DRAWS });
  }

  /** Runs the layers of `stage` on micro-batch `micro` of the batch. */
  run(stage: number, micro: number, values: Values): Values {
    const after = getRandomState();
    try {
      return this.segmentsOf(stage).reduce(
        (x, segment) => this.runSegment(segment, micro, x),
        values,
      );
    } finally {
      setRandomState(after);
    }
  }

  private layersOf(stage: number): PipelineLayer[] {
    return this.layers.slice(this.starts[stage], this.starts[stage + 1]);
  }

  /** Returns the indices of a stage's layers, grouped by checkpointed segment. */
  private segmentsOf(stage: number): { layers: number[]; isCheckpointed: boolean }[] {
    const { activationCheckpointInterval: interval = 0 } = this.options;
    const [from = 0, to = 0] = this.starts.slice(stage, stage + 2);
    const layers = Array.from({ length: to - from }, (_, i) => from + i);
    if (interval === 0 || !isGradEnabled()) return [{ layers, isCheckpointed: false }];
    const starts = layers.filter((_, i) => i % interval === 0);
    return starts.map((first) => ({
      layers: layers.filter((layer) => layer >= first && layer < first + interval),
      isCheckpointed: true,
    }));
  }

  private runSegment(
    { layers, isCheckpointed }: { layers: number[]; isCheckpointed: boolean },
    micro: number,
    values: Values,
  ): Values {
    const body = (...inputs: Tensor[]): Tensor | Tensor[] => {
      const first: Values = values instanceof Tensor ? required(inputs[0]) : inputs;
      const last = layers.reduce<Values>((x, layer) => this.runLayer(layer, micro, x), first);
      return last instanceof Tensor ? last : [...last];
    };
    const inputs = values instanceof Tensor ? [values] : [...values];
    return isCheckpointed ? checkpoint(body, ...inputs) : body(...inputs);
  }

  private runLayer(index: number, micro: number, values: Values): Values {
    const { seedLayers = false, baseSeed = 1234 } = this.options;
    const { seed, offset } = this.base;
    const first = offset + (micro * this.layers.length + index) * DRAWS;
    const count = this.batches + micro;
    setRandomState(
      seedLayers ? { seed: baseSeed * (count + 1) + index, offset: 0 } : { seed, offset: first },
    );
    const outputs = required(this.layers[index]).forward(values);
    const hint = 'Return the input of the next layer from its forward.';
    const result = requireValues(`pipeline layer ${index}`, outputs, hint);
    const drawn = getRandomState().offset - (seedLayers ? 0 : first);
    if (drawn > DRAWS) throw tooManyDrawsError(index, drawn);
    return result;
  }
}

/** Returns the weight of a layer for balanceStages(). */
function computeWeight({ modules, macs }: PipelineLayer, partitionMethod: string): number {
  const pattern = parsePattern(partitionMethod);
  if (pattern) return modules.some((module) => pattern.test(module.constructor.name)) ? 1 : 0;
  const method = partitionMethod.toLowerCase();
  if (method === 'uniform') return 1;
  const inner = [...new Set(modules.flatMap((module) => module.modules()))];
  const parameters = new Set(modules.flatMap((module) => module.parameters()));
  const elements = (shapes: Iterable<{ shape: readonly number[] }>): number =>
    Array.from(shapes).reduce((sum, { shape }) => sum + numel(shape), 0);
  if (method === 'parameters') return elements(parameters);
  const tables = new Set(
    inner.filter((module) => module instanceof Embedding).flatMap((module) => module.parameters()),
  );
  const multiplied = [...parameters].filter(
    (parameter) => parameter.ndim >= 2 && !tables.has(parameter),
  );
  return macs ?? elements(multiplied);
}

function tooManyDrawsError(layer: number, drawn: number): DsError {
  return new DsError({
    code: 'DS_LIMIT',
    op: `pipeline layer ${layer}`,
    expected: `at most ${DRAWS} random ops in one forward`,
    got: String(drawn),
    hint: 'Split it into several layers.',
  });
}
