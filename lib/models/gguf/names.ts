// Translates names of tensors between GGUF files and Hugging Face's files.
import type { ExpertNames, GgufArchitecture } from './architecture.js';
import { ARCHITECTURES } from './architectures.js';
import {
  createPairedLayout,
  GATE_UP,
  type GgufLayout,
  type GgufRule,
  JOINED,
  JOINED_PAIRS,
  ROW,
} from './layouts.js';
import { BLOCK_NAMES, EXPERTS, OUTSIDE_NAMES } from './shared-names.js';

/**
 * Returns llama.cpp's name, without suffix, of a tensor in a block; undefined for other tensors.
 */
function findBlockName({ names, joined }: GgufArchitecture, name: string): string | undefined {
  if (name === joined?.name) return 'attn_qkv';
  return names?.[name] ?? BLOCK_NAMES[name];
}

/** Returns Hugging Face's name of a tensor, without suffix; undefined for unknown tensors. */
export function findModelName(architecture: GgufArchitecture, stored: string): string | undefined {
  const { names = {}, blocks = BLOCKS, joined } = architecture;
  const outside = Object.entries({ ...OUTSIDE_NAMES, ...architecture.outside });
  // The family's own name comes last.
  const named = outside.filter(([, name]) => name === stored).at(-1);
  if (named) return named[0];
  const [, layer, rest] = /^blk\.(\d+)\.(.+)$/.exec(stored) ?? [];
  if (layer === undefined) return undefined;
  const first = joined && rest === 'attn_qkv' ? [[joined.name, rest] as const] : [];
  const all = [...first, ...Object.entries(names), ...Object.entries(BLOCK_NAMES)];
  const entry = all.find(
    ([own, name]) => name === rest && findBlockName(architecture, own) === name,
  );
  return entry && `${blocks}.${layer}.${entry[0]}`;
}

const BLOCKS = 'model.layers';

/** Returns the number of the block of a tensor with Hugging Face's name, and the rest of it. */
export function splitBlockName(
  { blocks = BLOCKS }: GgufArchitecture,
  name: string,
): { layer: string; rest: string } | null {
  if (!name.startsWith(`${blocks}.`)) return null;
  const [, layer, rest] = /^(\d+)\.(.+)$/.exec(name.slice(blocks.length + 1)) ?? [];
  return layer !== undefined && rest !== undefined ? { layer, rest } : null;
}

/** Returns llama.cpp's name of a tensor, without suffix; undefined for unknown tensors. */
export function findStoredName(
  architecture: GgufArchitecture,
  modelName: string,
): string | undefined {
  const place = splitBlockName(architecture, modelName);
  if (!place) return architecture.outside?.[modelName] ?? OUTSIDE_NAMES[modelName];
  const name = architecture.namesIf?.names[place.rest] ?? findBlockName(architecture, place.rest);
  return name && `blk.${place.layer}.${name}`;
}

/** Returns the names of experts in Hugging Face's files. */
export const readExpertNames = ({ experts = EXPERTS }: GgufArchitecture): ExpertNames => experts;

/** Returns the architecture as which a file is read. */
export function chooseReader(
  written: GgufArchitecture,
  has: (tensor: string) => boolean,
): GgufArchitecture {
  const architecture = ARCHITECTURES.find(({ name }) => name === written.readAs) ?? written;
  const { namesIf, names } = architecture;
  if (!namesIf || !has(namesIf.tensor)) return architecture;
  return { ...architecture, names: { ...names, ...namesIf.names } };
}

/** Returns the tensors of a block with other shapes or values than in Hugging Face's files. */
export function listRules(architecture: GgufArchitecture): readonly GgufRule[] {
  const { rules = [], isPaired, joined, mixture } = architecture;
  const { gateUp } = readExpertNames(architecture);
  const suffixRules = ['weight', 'bias'].flatMap((suffix) => {
    const createRule = (name: string, stored: readonly string[], layout: GgufLayout): GgufRule => ({
      modelName: `${name}.${suffix}`,
      layout,
      fileNames: stored.map((stem) => `${stem}.${suffix}`),
    });
    return [
      ...(isPaired
        ? [
            createRule('self_attn.q_proj', ['attn_q'], createPairedLayout('q')),
            createRule('self_attn.k_proj', ['attn_k'], createPairedLayout('k')),
          ]
        : []),
      ...(joined && !joined.isSplit ? [createRule(joined.name, ['attn_qkv'], JOINED)] : []),
      ...(joined?.isSplit
        ? [createRule(joined.name, ['attn_q', 'attn_k', 'attn_v'], JOINED_PAIRS)]
        : []),
      ...(gateUp ? [createRule(gateUp, [STACKS.gate, STACKS.up], GATE_UP)] : []),
      createRule('mlp.shared_expert_gate', ['ffn_gate_inp_shexp'], ROW),
    ];
  });
  const choice = mixture?.choiceBias;
  // ERNIE's bias has a further dimension of 1.
  const layout = choice?.includes('.moe_statics.') ? { layout: ROW } : {};
  const biases = choice
    ? [{ modelName: choice, fileNames: [`${CHOICE_BIAS}.bias`], ...layout }]
    : [];
  return [...rules, ...biases, ...suffixRules];
}

/** Names in GGUF files of the stacked matrices of experts, and of the router. */
export const STACKS = {
  router: 'ffn_gate_inp',
  gate: 'ffn_gate_exps',
  up: 'ffn_up_exps',
  down: 'ffn_down_exps',
} as const;

/** llama.cpp's name of the router's bias for the choice. */
const CHOICE_BIAS = 'exp_probs_b';
