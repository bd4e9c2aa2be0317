// The families that two ranks train: together they have every trait of all families. One process
// trains all families.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { nn } from '../../lib/index.js';
import type { RotaryTraits } from '../../lib/models/rotary/traits.js';
import type { JsonObject } from '../../types/json.js';
import { FAMILIES, folderOf } from './family-rows.js';

/** Chosen families, and the traits that the families before them lack. */
const CHOSEN: Readonly<Record<string, string>> = {
  gemma4: 'kinds of layers, shared keys, head norms, norms around, windows with own rope, caps',
  gemma3n: 'versions of the stream, sparse gates',
  'gpt-neox': 'parallel blocks, LayerNorm, biases everywhere, joined rows per head, partial rope',
  'qwen3-next':
    'gated delta nets, gated attention, offset norms, a gated shared expert, dense layers',
  'gpt-bigcode': 'one key head, packed projections, a table of positions',
  'deepseek-v2':
    'latent attention, rope in pairs, groups of experts by softmax, first layers dense',
  'deepseek-v3': 'a latent of queries',
  minicpm: 'factors of the embedding, the branches and the logits',
  'gpt-oss': 'sinks, a biased router, bounded gates',
  opt: 'ReLU, and norms that may be behind sums',
  'opt-narrow': 'norms of sums, a projected embedding',
  arcee: 'biases of feed-forward blocks by an option, squared ReLU',
  cwm: 'windows without a switch, rotary defaults',
  baichuan: 'packed queries with plain gates, a normalized head',
  cohere2: 'LayerNorm without bias, layers without windows that do not rotate',
  internlm2: 'joined rows per group of queries',
  afmoe: 'gates of attention by a projection',
  llama4: 'attention within chunks, queries scaled by position, experts with scaled inputs',
  'minimax-m2': 'norms over all heads, a sigmoid router',
  ministral3: 'one window for all layers, queries scaled by position',
  apertus: 'xIELU',
  'baichuan-alibi': 'linear biases of scores',
  'ernie-moe': 'a bias for the choice of experts by softmax',
  exaone: 'SiLU as declared',
  exaone4: 'layers that do not rotate beside windows',
  'falcon-h1': 'attention and a state space layer in one block, multipliers',
  gemma2: 'bounded scores',
  glm: 'packed gates',
  gpt2: 'another body',
  gptj: 'a bias of the head',
  'granite-4-h': 'state space layers, a joined shared expert, no rotation',
  hunyuan: 'norms behind the rotation',
  lfm2: 'short convolutions',
  nanochat: 'norms without weights that differ by kind, a rotation the other way',
  'nemotron-h': 'blocks with one branch, norms of groups',
  'nemotron-h-moe': 'experts without gates, of a width of their own',
  olmo: 'norms without weights',
  phimoe: 'a router of near experts',
  smollm3: 'a list of layers that do not rotate',
};

/** The environment's choice, or the families here. */
export const SPLIT_FAMILIES: readonly string[] = process.env.DS_FAMILIES
  ? FAMILIES
  : FAMILIES.filter((family) => family in CHOSEN);

/** Parts of a declaration that name things, or are numbers. */
const NAMES = new Set([
  ...['name', 'modelType', 'alsoTypes', 'textOf', 'architecture', 'defaults', 'files', 'keys'],
  ...['others', 'only', 'written', 'key', 'eps', 'names', 'last', 'fallback', 'partialFallback'],
  ...['otherWidth', 'width', 'perToken', 'perTokenKey', 'experts', 'hidden', 'hasPredictors'],
  ...['aliases', 'types', 'ofPictures', 'sectionsOnly', 'alpha', 'originalBeside', 'layerTypes'],
  ...['attentionTypes', 'slidesAt', 'windowEvery', 'overflowsF16', 'listsLayers', 'out'],
  ...['residualDropout', 'first', 'second', 'table', 'qkNormKey', 'power', 'choosesNorm'],
  ...['mamba', 'optional'],
]);

function* traitsIn(value: unknown, path: string): Generator<string> {
  if (value === undefined || value === null || value === false) return;
  if (typeof value === 'string') yield `${path}=${value}`;
  else yield path;
  if (typeof value !== 'object' || Array.isArray(value)) return;
  for (const [key, inner] of Object.entries(value)) {
    if (!NAMES.has(key)) yield* traitsIn(inner, path ? `${path}.${key}` : key);
  }
}

/** The traits of a family that its declaration and the sizes of its folder have. */
export function traitsOf(family: string): Set<string> {
  const text = readFileSync(join(folderOf(family), 'config.json'), 'utf8');
  const model = nn.models.fromConfig(JSON.parse(text) as JsonObject);
  const { traits } = model as unknown as { traits?: RotaryTraits };
  const config = model.config as nn.models.RotaryConfig;
  const { tied, heads, kvHeads, moe, latent, parallel, sumNorms, embedDim, channels } = config;
  const { mamba } = config;
  const sizes = {
    tied,
    parallel,
    sumNorms,
    grouped: kvHeads !== heads,
    ownKeys: kvHeads === heads,
    narrow: embedDim !== undefined && embedDim !== channels,
    moe: moe !== undefined,
    states: mamba != null,
    besideAttention: traits?.mamba?.besideAttention,
    dense: (moe?.denseLayers ?? []).length > 0,
    latentExperts: moe?.latentDim != null,
    queryRank: latent?.queryRank != null,
  };
  const declared = traits ? traitsIn(traits, '') : [model.constructor.name];
  return new Set([...declared, ...traitsIn(sizes, '')]);
}
