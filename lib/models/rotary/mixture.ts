// Experts of mixture models: sizes, keys of config.json, and names of their weights in files.

import { isDeepStrictEqual } from 'node:util';
import type { JsonObject, JsonValue } from '../../../types/json.js';
import type { SliceNames } from '../../checkpoint/index.js';
import type { ExpertActivation } from '../../nn/experts.js';
import { argumentError, valueError } from '../../runtime/input-errors.js';
import { namesOf, readOptions } from '../../runtime/options.js';
import { requireInteger } from '../../runtime/require-number.js';
import type { ModelConfig } from '../model-config.js';

/** The experts of a model's feed-forward blocks. */
export interface MoeConfig {
  /** Experts of each block (num_experts, Mixtral's num_local_experts), at most 512. */
  experts: number;
  /** Number of experts per token (num_experts_per_tok). */
  perToken: number;
  /** Width inside an expert (moe_intermediate_size). Default: the model's `hidden`. */
  hidden?: number;
  /**
   * Width of the shared expert, which processes all tokens (shared_expert_intermediate_size).
   * Default: null, no shared expert.
   */
  sharedHidden?: number | null;
  /** Whether the weights of a token's experts add up to 1 (norm_topk_prob). Default: true. */
  normalize?: boolean;
  /**
   * Indices of layers with one feed-forward block of the model's `hidden` instead (mlp_only_layers,
   * decoder_sparse_step). If blocks have one branch: all layers without experts. Default: none.
   */
  denseLayers?: readonly number[];
  /** Groups of experts (n_group), in families with a router by groups. Default: 1. */
  groups?: number;
  /** Groups that a token's experts are in (topk_group). Default: all. */
  keptGroups?: number;
  /** Factor of the weights (routed_scaling_factor). Default: 1. */
  scale?: number;
  /**
   * Width of the experts' inputs and outputs (moe_latent_size), in families that project to it;
   * null: the channels. Default: null.
   */
  latentDim?: number | null;
}

/** A complete MoeConfig. */
export type MoeSizes = Required<MoeConfig>;

/** Properties of a family of mixtures. */
export interface MoeTraits {
  /** config.json's key for the number of experts, and transformers' default. */
  readonly experts: readonly [key: string, fallback: number];
  /** transformers' default for num_experts_per_tok. */
  readonly perToken: number;
  /** Another key for it. */
  readonly perTokenKey?: string;
  /**
   * The experts are beside a dense block, with a router that scales its input, if this key of
   * config.json is true. Default: they are in its place.
   */
  readonly beside?: string;
  /** config.json's key for the width inside an expert. */
  readonly hidden: 'intermediate_size' | 'moe_intermediate_size';
  /** Whether the key for the number of experts may be 0: all blocks are dense. Default: false. */
  readonly optional?: boolean;
  /**
   * Whether there is a shared expert for all tokens. "ungated": of n_shared_experts times the width
   * of an expert, and without a gate. "joined": of the width of a dense block, without a gate, and
   * with gate and up as one matrix. "plain": of its own width, with the names and the activation of
   * a block without a gate.
   */
  readonly shared: boolean | 'ungated' | 'joined' | 'plain';
  /** Whether norm_topk_prob sets if weights add up to 1; otherwise always or "never". */
  readonly choosesNorm: boolean | 'never';
  /**
   * Whether some layers may be dense. "first": only the first ones (first_k_dense_replace).
   * "listed": moe_layers has the others. "branches": layers_block_type has the others, as "moe".
   */
  readonly choosesLayers: boolean | 'first' | 'listed' | 'branches';
  /** Whether mlp_layer_types, if present, has the kinds of the layers. Default: false. */
  readonly listsLayers?: boolean;
  /** Whether softmax scores have a bias for the choice; sigmoid scores always have one. */
  readonly choiceBias?: boolean;
  /** Scores of a router by groups; see nn.GroupRouter. Default: nn.TopKRouter. */
  readonly scores?: 'sigmoid' | 'softmax';
  /** The jitter of nn.SparseMixerRouter, which then replaces nn.TopKRouter. */
  readonly sparseMixer?: number;
  /** Whether scores of a router by groups scale the inputs of experts. Default: false. */
  readonly scalesInputs?: boolean;
  /** Whether matrices of experts are [in, out], as in the files. Default: only with a limit. */
  readonly inputsFirst?: boolean;
  /** Whether the router has a bias. Default: false. */
  readonly routerBias?: boolean;
  /** Bound of gates, in families of experts with biases; see nn.Experts. Default: none. */
  readonly limit?: number;
  /** The function inside of experts. Default: "silu". */
  readonly activation?: ExpertActivation;
  /** config.json's key of the width of experts' inputs and outputs. Default: the channels. */
  readonly latent?: string;
  /** Names in the files. */
  readonly files: ExpertFiles | null;
}

/**
 * Names in the files: a matrix for each expert, one tensor of all experts, or the names here except
 * for the router.
 */
type ExpertFiles =
  | {
      /** The feed-forward block. */
      readonly block: string;
      /** Null: experts have no gate. */
      readonly gate: string | null;
      readonly up: string;
      readonly down: string;
      /** The router's bias for the choice. Default: gate.e_score_correction_bias. */
      readonly choiceBias?: string;
    }
  | {
      readonly block: string;
      readonly router: string;
      /** [experts, 2 hidden, channels], gates first. */
      readonly gateUp: string;
      /** [experts, channels, hidden]. */
      readonly allDown: string;
      /** The shared expert beside the block, with the matrices `gateUp` and `allDown`. */
      readonly shared?: string;
    }
  | { readonly block: string; readonly router: string };

/** Whether routing statistics exist, for a loss that balances experts. */
export const hasLoads = ({ scores, beside, sparseMixer }: MoeTraits): boolean =>
  !scores && !beside && sparseMixer === undefined;

/** Whether a model of the family may have no experts. */
export const isOptional = ({ beside, optional, choosesLayers }: MoeTraits): boolean =>
  beside !== undefined || optional === true || choosesLayers === 'branches';

/** Names in the files of Qwen's mixtures. */
export const QWEN_FILES: ExpertFiles = {
  block: 'mlp',
  gate: 'gate_proj',
  up: 'up_proj',
  down: 'down_proj',
};

/**
 * Returns the complete `moe`; `model` is the name in errors. Throws DS_ARGUMENT for a missing or
 * invalid option.
 */
export function readMoe(
  model: string,
  traits: MoeTraits,
  moe: MoeConfig | undefined,
  { hidden: dense, layers, mlpBias }: { hidden: number; layers: number; mlpBias?: boolean },
): MoeSizes {
  const op = `${model} moe`;
  if (moe === undefined) throw argumentError(op, '{ experts, perToken }', 'undefined');
  const isJoined = traits.shared === 'joined';
  const given = readOptions(op, moe, namesOf.MoeConfig);
  const { sharedHidden = isJoined ? dense : null, ...config } = given;
  const isNormed = traits.choosesNorm !== 'never';
  const { normalize = isNormed, denseLayers = [], hidden = dense, latentDim = null } = config;
  const experts = requireInteger(`${op} experts`, config.experts, 1);
  const perToken = requireInteger(`${op} perToken`, config.perToken, 1);
  if (experts > 512) throw valueError(`${op} experts`, 'at most 512', experts);
  if (perToken > experts)
    throw valueError(`${op} perToken`, `at most ${experts} experts`, perToken);
  requireInteger(`${op} hidden`, hidden, 1);
  if (sharedHidden !== null) requireInteger(`${op} sharedHidden`, sharedHidden, 1);
  if ((traits.shared !== false) !== (sharedHidden !== null)) {
    const expected = traits.shared
      ? 'the width of the shared expert'
      : 'null, because the family has no shared expert';
    throw valueError(`${op} sharedHidden`, expected, sharedHidden);
  }
  if (traits.shared === 'ungated' && Number(sharedHidden) % hidden !== 0) {
    throw valueError(`${op} sharedHidden`, `a multiple of ${hidden}`, sharedHidden);
  }
  if (traits.choosesNorm !== true && normalize !== isNormed) {
    throw valueError(`${op} normalize`, `${isNormed}, the setting of the family`, normalize);
  }
  if (isJoined && sharedHidden !== dense) {
    throw valueError(`${op} sharedHidden`, `${dense}, the model's hidden`, sharedHidden);
  }
  const isLayer = (value: number): boolean =>
    Number.isInteger(value) && value >= 0 && value < layers;
  const isFitting =
    traits.choosesLayers === 'first'
      ? denseLayers.every((layer, i) => layer === i)
      : traits.choosesLayers || denseLayers.length === 0;
  if (!Array.isArray(denseLayers) || !denseLayers.every(isLayer) || !isFitting) {
    const expected = traits.choosesLayers ? `numbers of ${layers} layers` : 'none';
    throw valueError(`${op} denseLayers`, expected, denseLayers);
  }
  if (latentDim !== null && !(traits.latent && !mlpBias)) {
    const expected = traits.latent
      ? 'null, because of mlpBias'
      : 'null, because the family has none';
    throw valueError(`${op} latentDim`, expected, latentDim);
  }
  if (latentDim !== null) requireInteger(`${op} latentDim`, latentDim, 1);
  const routing = readGroups(op, traits, config);
  return { experts, perToken, hidden, sharedHidden, normalize, denseLayers, latentDim, ...routing };
}

/** The numbers of a router by groups. nn.GroupRouter checks that they fit the experts. */
function readGroups(
  op: string,
  { scores }: MoeTraits,
  { groups = 1, keptGroups = groups, scale = 1 }: Pick<MoeConfig, keyof typeof PLAIN>,
): Pick<MoeSizes, keyof typeof PLAIN> {
  const numbers = { groups, keptGroups, scale };
  for (const [name, value] of Object.entries(numbers)) {
    if (scores || value === 1) continue;
    throw valueError(`${op} ${name}`, '1, because the family has no groups of experts', value);
  }
  return numbers;
}

const PLAIN = { groups: 1, keptGroups: 1, scale: 1 } as const;

/** Reads the experts in a config.json. Throws DS_CHECKPOINT for invalid values. */
export function parseMoe(traits: MoeTraits, config: ModelConfig, layers: number): MoeConfig {
  config.requireOneOf('router_jitter_noise', [traits.sparseMixer ?? 0]);
  config.requireOneOf('scoring_func', [traits.scores ?? 'softmax']);
  const [key, fallback] = traits.experts;
  const experts = config.size(config.get(key) === null ? OTHER_KEY : key, fallback);
  const { perTokenKey = PER_TOKEN } = traits;
  const perToken = config.size(perTokenKey, traits.perToken);
  if (experts > 512) throw config.refusalError(key, 'at most 512 experts', experts);
  if (perToken > experts) {
    throw config.refusalError(perTokenKey, `at most ${experts}`, perToken);
  }
  const hidden = config.size(traits.hidden);
  if (traits.choosesNorm === 'never') config.requireOneOf('norm_topk_prob', [false]);
  return {
    experts,
    perToken,
    hidden,
    ...(traits.shared && { sharedHidden: parseShared(traits, config, hidden) }),
    ...(traits.choosesNorm === true && { normalize: config.flag('norm_topk_prob', false) }),
    ...(traits.choosesLayers && {
      denseLayers: parseDenseLayers(traits, config, layers),
    }),
    ...(traits.scores && parseGroups(traits, config, { experts, perToken })),
    ...(traits.latent && { latentDim: parseLatent(traits.latent, config) }),
  };
}

function parseLatent(key: string, config: ModelConfig): number | null {
  if (config.get(key) === null) return null;
  config.requireOneOf('mlp_bias', [false]);
  return config.size(key);
}

function parseDenseLayers(traits: MoeTraits, config: ModelConfig, layers: number): number[] {
  const { choosesLayers } = traits;
  if (choosesLayers === 'first') return parseFirst(config, layers);
  if (choosesLayers === 'branches') {
    return listBlockTypes(config).flatMap((type, layer) => (type === BLOCK ? [] : [layer]));
  }
  return choosesLayers === 'listed' ? parseUnlisted(config, layers) : parseDense(config, layers);
}

function parseShared({ shared }: MoeTraits, config: ModelConfig, hidden: number): number {
  if (shared === 'joined') return config.size('intermediate_size');
  if (shared === 'ungated') return config.size('n_shared_experts') * hidden;
  if (shared === 'plain') return config.size(PLAIN_SHARED);
  return config.size('shared_expert_intermediate_size');
}

const PLAIN_SHARED = 'moe_shared_expert_intermediate_size';

/** The key that lists branches, and its name of experts. */
const [BLOCKS, BLOCK] = ['layers_block_type', 'moe'];

/** Returns the branches of blocks with one branch each; none without a list. */
function listBlockTypes(config: ModelConfig): JsonValue[] {
  const types = config.get(BLOCKS);
  return Array.isArray(types) ? types : [];
}

/** Whether the model of a config.json has experts. */
export function hasExperts(moe: MoeTraits | undefined, config: ModelConfig): boolean {
  if (moe?.beside !== undefined) return config.flag(moe.beside, false);
  if (moe?.choosesLayers === 'branches') return listBlockTypes(config).includes(BLOCK);
  return moe !== undefined && !(isOptional(moe) && config.get(...moe.experts) === 0);
}

/** The entries of mlp_layer_types. */
const [DENSE, SPARSE] = ['dense', 'sparse'];

const layerKinds = (first: number, layers: number): string[] =>
  Array.from({ length: layers }, (_, layer) => (layer < first ? DENSE : SPARSE) as string);

function parseFirst(config: ModelConfig, layers: number): number[] {
  config.requireOneOf('moe_layer_freq', [1]);
  const last = config.get('moe_layer_end_index', -1);
  if (typeof last !== 'number' || (last !== -1 && last < layers - 1)) {
    throw config.refusalError('moe_layer_end_index', `-1, or ${layers - 1} or more`, last);
  }
  const list = config.get('mlp_layer_types');
  if (list !== null) {
    const count = Array.isArray(list) ? list.filter((item) => item === DENSE).length : 0;
    if (isDeepStrictEqual(list, layerKinds(count, layers))) return [...Array(count).keys()];
    throw config.refusalError('mlp_layer_types', `${layers} kinds, dense ones first`, list);
  }
  const first = config.get('first_k_dense_replace', 0);
  if (typeof first !== 'number' || !Number.isInteger(first) || first < 0) {
    throw config.refusalError('first_k_dense_replace', 'a number of layers', first);
  }
  return Array.from({ length: Math.min(first, layers) }, (_, layer) => layer);
}

/** The methods of a choice of groups, and of one without groups. */
const METHODS = { sigmoid: ['noaux_tc'], softmax: ['group_limited_greedy'] } as const;

function parseGroups(
  { scores = 'softmax' }: MoeTraits,
  config: ModelConfig,
  { experts, perToken }: { experts: number; perToken: number },
): Pick<MoeConfig, keyof typeof PLAIN> {
  const scale = config.positive('routed_scaling_factor', 1);
  const method = config.get('topk_method', scores === 'softmax' ? 'greedy' : null);
  if (scores === 'softmax' && method === 'greedy') return { ...PLAIN, scale };
  config.requireOneOf('topk_method', METHODS[scores]);
  const groups = config.size('n_group', 1);
  const keptGroups = config.size('topk_group', 1, groups);
  if (experts % groups !== 0)
    throw config.refusalError('n_group', `a divisor of ${experts}`, groups);
  if ((experts / groups) * keptGroups < perToken) {
    throw config.refusalError('topk_group', `groups with ${perToken} experts`, keptGroups);
  }
  return { groups, keptGroups, scale };
}

/** The entries of config.json for a router by groups. */
const describeGroups = (
  { scores }: MoeTraits,
  { groups, keptGroups, scale }: MoeSizes,
): JsonObject => ({
  n_group: groups,
  topk_group: keptGroups,
  // transformers refuses an integer here; 1 is its default with a softmax.
  ...((scores === 'sigmoid' || scale !== 1) && { routed_scaling_factor: scale }),
  ...(scores === 'softmax' && { topk_method: groups === 1 ? 'greedy' : METHODS.softmax[0] }),
});

const PER_TOKEN = 'num_experts_per_tok';

/** Newer versions of transformers also write this key. */
const OTHER_KEY = 'num_local_experts';

function parseDense(config: ModelConfig, layers: number): number[] {
  const step = config.size('decoder_sparse_step', 1);
  const denseLayers = config.get('mlp_only_layers', []);
  const isLayer = (item: JsonValue): boolean =>
    typeof item === 'number' && Number.isInteger(item) && item >= 0;
  if (!Array.isArray(denseLayers) || !denseLayers.every(isLayer)) {
    throw config.refusalError('mlp_only_layers', 'a list of numbers of layers', denseLayers);
  }
  const all = Array.from({ length: layers }, (_, layer) => layer);
  return all.filter((layer) => denseLayers.includes(layer) || (layer + 1) % step !== 0);
}

const LISTED = 'moe_layers';

/** Returns the layers that are not in the list of sparse ones; without a list, every n-th is. */
function parseUnlisted(config: ModelConfig, layers: number): number[] {
  const every = config.size('interleave_moe_layer_step', 1);
  const all = Array.from({ length: layers }, (_, layer) => layer);
  const list = config.get(
    LISTED,
    all.filter((layer) => (layer + 1) % every === 0),
  );
  if (!Array.isArray(list) || !list.every((item) => all.includes(item as number))) {
    throw config.refusalError(LISTED, `a list of numbers of ${layers} layers`, list);
  }
  return all.filter((layer) => !list.includes(layer));
}

/** The weight of the routers' loss: 0 unless config.json enables router logits. */
export function parseRouterLoss(config: ModelConfig): number {
  const weight = config.get('router_aux_loss_coef', 0.001);
  if (typeof weight !== 'number' || !Number.isFinite(weight) || weight < 0) {
    throw config.refusalError('router_aux_loss_coef', 'a number of 0 or more', weight);
  }
  return config.flag('output_router_logits', false) ? weight : 0;
}

/** The entries of config.json for the experts. */
export function describeMoe(
  traits: MoeTraits,
  moe: MoeSizes,
  { routerLoss, layers }: { routerLoss: number; layers: number },
): JsonObject {
  const [key] = traits.experts;
  const all = Array.from({ length: layers }, (_, layer) => layer);
  return {
    [key]: moe.experts,
    [traits.perTokenKey ?? PER_TOKEN]: moe.perToken,
    ...(traits.beside && { [traits.beside]: true }),
    [traits.hidden]: moe.hidden,
    ...(traits.shared === 'ungated' && {
      n_shared_experts: Number(moe.sharedHidden) / moe.hidden,
    }),
    ...(traits.shared === true && { shared_expert_intermediate_size: moe.sharedHidden }),
    ...(traits.shared === 'plain' && { [PLAIN_SHARED]: moe.sharedHidden }),
    ...(traits.latent && { [traits.latent]: moe.latentDim }),
    ...(traits.choosesNorm && { norm_topk_prob: moe.normalize }),
    ...(traits.choosesLayers === 'first'
      ? {
          first_k_dense_replace: moe.denseLayers.length,
          ...(traits.listsLayers && {
            mlp_layer_types: layerKinds(moe.denseLayers.length, layers),
          }),
        }
      : traits.choosesLayers === 'listed'
        ? { [LISTED]: all.filter((layer) => !moe.denseLayers.includes(layer)) }
        : traits.choosesLayers === true && {
            decoder_sparse_step: 1,
            mlp_only_layers: [...moe.denseLayers],
          }),
    ...(traits.scores
      ? describeGroups(traits, moe)
      : !traits.beside && { output_router_logits: routerLoss > 0 }),
    ...(routerLoss > 0 && { router_aux_loss_coef: routerLoss }),
  };
}

const CHOICE_BIAS = 'e_score_correction_bias';

/**
 * Parameters of each sparse layer that files store under other names, or in slices; `list` and
 * `block` are names of the model.
 */
export function expertSlices(
  { files, routerBias = false }: MoeTraits,
  moe: MoeSizes,
  { layers, list, block }: { layers: number; list: string; block: string },
): SliceNames {
  const slices: [string, string[]][] = [];
  if (files === null) return {};
  for (let layer = 0; layer < layers; ++layer) {
    if (moe.denseLayers.includes(layer)) continue;
    const [modelBlock, fileBlock] = [block, files.block].map((name) => `${list}.${layer}.${name}`);
    if ('router' in files) {
      const parts = routerBias ? ['weight', 'bias'] : ['weight'];
      for (const part of parts) {
        slices.push([`${modelBlock}.gate.${part}`, [`${fileBlock}.${files.router}.${part}`]]);
      }
      if (!('gateUp' in files)) continue;
      slices.push([`${modelBlock}.experts.gate_up_proj`, [`${fileBlock}.${files.gateUp}.weight`]]);
      slices.push([`${modelBlock}.experts.down_proj`, [`${fileBlock}.${files.allDown}.weight`]]);
      if (!files.shared) continue;
      const own = `${modelBlock}.shared_experts`;
      const shared = `model.layers.${layer}.${files.shared}`;
      slices.push([`${own}.gate_up_proj.weight`, [`${shared}.${files.gateUp}.weight`]]);
      slices.push([`${own}.down_proj.weight`, [`${shared}.${files.allDown}.weight`]]);
      continue;
    }
    const expert = (name: string): string => `${fileBlock}.experts.*.${name}.weight`;
    if (modelBlock !== fileBlock)
      slices.push([`${modelBlock}.gate.weight`, [`${fileBlock}.gate.weight`]]);
    if (files.choiceBias) {
      slices.push([`${modelBlock}.gate.${CHOICE_BIAS}`, [`${fileBlock}.${files.choiceBias}`]]);
    }
    const first = [files.gate, files.up].flatMap((name) => (name === null ? [] : [expert(name)]));
    slices.push([`${modelBlock}.experts.gate_up_proj`, first]);
    slices.push([`${modelBlock}.experts.down_proj`, [expert(files.down)]]);
  }
  return Object.fromEntries(slices);
}
