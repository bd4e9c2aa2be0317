// Names of tensors in GGUF files and in Hugging Face's files.
import type { ExpertNames, GgufArchitecture } from './architecture.js';
import { ARCHITECTURES } from './architectures.js';
import {
  GATE_UP,
  type GgufLayout,
  type GgufRule,
  JOINED,
  JOINED_PAIRS,
  paired,
  ROW,
} from './layouts.js';
import { BLOCK, EXPERTS, OUTSIDE } from './shared-names.js';

/**
 * Returns llama.cpp's name, without suffix, of a tensor in a block; undefined for other tensors.
 */
function blockName({ names, joined }: GgufArchitecture, theirs: string): string | undefined {
  if (theirs === joined?.name) return 'attn_qkv';
  return names?.[theirs] ?? BLOCK[theirs];
}

/** Returns Hugging Face's name of a tensor, without suffix; undefined for unknown tensors. */
export function modelName(architecture: GgufArchitecture, stored: string): string | undefined {
  const { names = {}, blocks = BLOCKS, joined } = architecture;
  const outside = Object.entries({ ...OUTSIDE, ...architecture.outside });
  // The family's own name comes last.
  const named = outside.filter(([, name]) => name === stored).at(-1);
  if (named) return named[0];
  const [, layer, rest] = /^blk\.(\d+)\.(.+)$/.exec(stored) ?? [];
  if (layer === undefined) return undefined;
  const first = joined && rest === 'attn_qkv' ? [[joined.name, rest] as const] : [];
  const all = [...first, ...Object.entries(names), ...Object.entries(BLOCK)];
  const found = all.find(([own, name]) => name === rest && blockName(architecture, own) === name);
  return found && `${blocks}.${layer}.${found[0]}`;
}

const BLOCKS = 'model.layers';

/** Returns the number of the block of a tensor with Hugging Face's name, and the rest of it. */
export function placeOf(
  { blocks = BLOCKS }: GgufArchitecture,
  own: string,
): { layer: string; rest: string } | null {
  if (!own.startsWith(`${blocks}.`)) return null;
  const [, layer, rest] = /^(\d+)\.(.+)$/.exec(own.slice(blocks.length + 1)) ?? [];
  return layer !== undefined && rest !== undefined ? { layer, rest } : null;
}

/** Returns llama.cpp's name of a tensor, without suffix; undefined for unknown tensors. */
export function storedName(architecture: GgufArchitecture, own: string): string | undefined {
  const place = placeOf(architecture, own);
  if (!place) return architecture.outside?.[own] ?? OUTSIDE[own];
  const name = architecture.namesIf?.names[place.rest] ?? blockName(architecture, place.rest);
  return name && `blk.${place.layer}.${name}`;
}

/** Returns the names of experts in Hugging Face's files. */
export const expertNames = ({ experts = EXPERTS }: GgufArchitecture): ExpertNames => experts;

/** Returns the architecture as which a file is read. */
export function readerOf(
  given: GgufArchitecture,
  has: (tensor: string) => boolean,
): GgufArchitecture {
  const architecture = ARCHITECTURES.find(({ name }) => name === given.readAs) ?? given;
  const { namesIf, names } = architecture;
  if (!namesIf || !has(namesIf.tensor)) return architecture;
  return { ...architecture, names: { ...names, ...namesIf.names } };
}

/** Returns the tensors of a block with other shapes or values than in Hugging Face's files. */
export function rulesOf(architecture: GgufArchitecture): readonly GgufRule[] {
  const { rules = [], isPaired, joined, mixture } = architecture;
  const { gateUp } = expertNames(architecture);
  const own = ['weight', 'bias'].flatMap((suffix) => {
    const rule = (name: string, stored: readonly string[], layout: GgufLayout): GgufRule => ({
      own: `${name}.${suffix}`,
      layout,
      stored: stored.map((one) => `${one}.${suffix}`),
    });
    return [
      ...(isPaired
        ? [
            rule('self_attn.q_proj', ['attn_q'], paired('q')),
            rule('self_attn.k_proj', ['attn_k'], paired('k')),
          ]
        : []),
      ...(joined && !joined.isSplit ? [rule(joined.name, ['attn_qkv'], JOINED)] : []),
      ...(joined?.isSplit ? [rule(joined.name, ['attn_q', 'attn_k', 'attn_v'], JOINED_PAIRS)] : []),
      ...(gateUp ? [rule(gateUp, [STACKS.gate, STACKS.up], GATE_UP)] : []),
      rule('mlp.shared_expert_gate', ['ffn_gate_inp_shexp'], ROW),
    ];
  });
  const choice = mixture?.choiceBias;
  // ERNIE's bias has a further dimension of 1.
  const layout = choice?.includes('.moe_statics.') ? { layout: ROW } : {};
  const biases = choice ? [{ own: choice, stored: [`${CHOICE_BIAS}.bias`], ...layout }] : [];
  return [...rules, ...biases, ...own];
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
