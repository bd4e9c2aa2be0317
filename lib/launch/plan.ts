// `ds plan`: what training a model needs by stage and offload, and the configuration that is
// fastest.
import { availableParallelism, totalmem } from 'node:os';
import { DsError } from '../errors.js';
import {
  configOf,
  formatPlan,
  H200,
  makePlan,
  type PlannedAdapters,
  plannedModel,
  sizesOf,
} from '../plan/index.js';

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
  /** Whether AdamW's moments are bf16. */
  bf16OptimizerStates?: boolean;
  /** Ranks of adapters; true where no number was given. */
  lora?: number | true;
  qlora?: number | true;
  loraTargets?: string;
  json?: boolean;
}

/** The rank of adapters that nobody has given one. Source: PEFT. */
const RANK = 8;

/** The plan as text, and whether anything fits. Throws DS_ARGUMENT, DS_CHECKPOINT, DS_IO. */
export function plan(flags: PlanFlags): { fits: boolean; output: string } {
  const sizes = sizesOf(plannedModel(flags.model, adaptersOf(flags)));
  const request = {
    ...{ sizes, batch: flags.batch, seq: flags.seq ?? Math.min(1024, sizes.maxSeq) },
    ...{ precision: flags.precision, bf16States: flags.bf16OptimizerStates ?? false },
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

/** The adapters that the options ask for. Throws DS_ARGUMENT for what cannot be together. */
function adaptersOf({ lora, qlora, loraTargets, tp, pp }: PlanFlags): PlannedAdapters | null {
  const refused = (op: string, expected: string, got: string) =>
    new DsError({ code: 'DS_ARGUMENT', op: `plan ${op}`, expected, got });
  if (lora !== undefined && qlora !== undefined)
    throw refused('--qlora', '--lora or --qlora', 'both');
  const asked = qlora ?? lora;
  if (asked === undefined) {
    if (loraTargets === undefined) return null;
    throw refused('--lora-targets', '--lora or --qlora beside it', 'neither');
  }
  if (tp > 1 || pp > 1)
    throw refused('--lora', '--tp 1 and --pp 1: adapters are not cut', `--tp ${tp} --pp ${pp}`);
  const names = loraTargets?.split(',');
  const targetModules = names?.length === 1 ? (names[0] as string) : (names ?? null);
  return { r: asked === true ? RANK : asked, targetModules, isQuantized: qlora !== undefined };
}
