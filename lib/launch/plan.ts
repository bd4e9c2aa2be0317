// `ds plan`: what training a model needs by stage and offload, and the configuration that is
// fastest.
import { availableParallelism, totalmem } from 'node:os';
import { configOf, formatPlan, H200, makePlan, plannedModel, sizesOf } from '../plan/index.js';

/** The options as they are typed; bytes are numbers. */
export interface PlanFlags {
  model: string;
  batch: number;
  seq?: number;
  gpuMemory: number;
  hostMemory?: number;
  gpus: number;
  nodes: number;
  cores?: number;
  /** GB/s from one machine to the others. */
  link: number;
  /** Bytes of each machine's disk. */
  nvmeSpace?: number;
  /** GB/s of reading, and of writing at once. */
  nvmeRate: number;
  /** At most so many ranks share each layer, and so many stages the model. */
  tp: number;
  pp: number;
  precision: 'bf16' | 'fp16' | 'fp32';
  json?: boolean;
}

const ADAMW = 8;

/** The plan as text, and whether anything fits. Throws DS_ARGUMENT, DS_CHECKPOINT, DS_IO. */
export function plan(flags: PlanFlags): { fits: boolean; output: string } {
  const sizes = sizesOf(plannedModel(flags.model));
  const request = {
    ...{ sizes, batch: flags.batch, seq: flags.seq ?? Math.min(1024, sizes.maxSeq) },
    ...{ precision: flags.precision, stateBytes: ADAMW },
    rates: { ...H200, disk: flags.nvmeRate * 1e9 },
    ...{ diskMemory: flags.nvmeSpace ?? 0, most: { tensor: flags.tp, stages: flags.pp } },
    ...{ deviceMemory: flags.gpuMemory, hostMemory: flags.hostMemory ?? totalmem() },
    cluster: {
      nodes: flags.nodes,
      devicesPerNode: flags.gpus,
      coresPerNode: flags.cores ?? availableParallelism(),
      nodeLink: flags.link * 1e9,
    },
  };
  const made = makePlan(request);
  const fits = made.best !== null;
  if (!flags.json) return { fits, output: formatPlan(made, request) };
  const listed = made.candidates.map((one) => ({ ...one, config: configOf(one) }));
  return {
    fits,
    output: JSON.stringify({ best: fits ? listed[0] : null, candidates: listed }, null, 2),
  };
}
