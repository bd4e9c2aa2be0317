// Splits a model over ranks, by the declaration of its family.
import type { LayerStyle, StyleName, TensorPlan } from '../../parallel/plan.js';
import { argumentError } from '../../runtime/input-errors.js';
import { lastNorm } from './body.js';
import type { BodySizes } from './config.js';

type Styles = Record<string, StyleName | LayerStyle>;

/** Returns the paths of modules by the family's names. */
function modulePaths({ traits: { names = {} } }: BodySizes) {
  const { model = 'model', embed = 'embed_tokens', attention = 'self_attn' } = names;
  const list = `${model}.${names.layers ?? 'layers'}`;
  return {
    model,
    list,
    table: `${model}.${embed}`,
    head: names.head ?? 'lm_head',
    attention: `${list}.*.${attention}`,
    mlp: `${list}.*.mlp`,
  };
}

/** Returns the plan of all layers; `takeHeads` receives this rank's heads. */
export function rotaryTensorPlan(
  body: BodySizes,
  takeHeads: NonNullable<TensorPlan['taken']>,
): TensorPlan {
  const { heads, kvHeads, moe, layers, traits, norms } = body;
  const hasDenseBlock = moe !== null && traits.moe?.beside !== undefined;
  const sparse = moe && !hasDenseBlock ? layers - moe.denseLayers.length : 0;
  const hasShared = sparse > 0 && moe?.sharedHidden != null;
  const isGated = traits.moe?.shared === true;
  const names = [...norms.attention, ...norms.mlp].filter((name) => name !== null);
  const { model, list, table, head, attention, mlp } = modulePaths(body);
  return {
    heads: { queries: heads, keys: kvHeads },
    layers: {
      ...kindStyles(body, attention),
      [table]: 'vocabulary',
      ...(body.layerInputDim && { [`${model}.embed_tokens_per_layer`]: 'vocabulary' as const }),
      ...(traits.oneBranch ? branchStyles(body, attention) : attentionStyles(body, attention)),
      ...(sparse < layers && !traits.oneBranch && denseStyles(body, mlp)),
      ...(sparse > 0 && !traits.oneBranch && expertStyles(mlp)),
      ...(hasDenseBlock && besideStyles(`${list}.*`)),
      ...(hasShared && !traits.oneBranch && sharedStyles(body, mlp)),
      // A head with a bias or norms stays whole, because the split loss has none.
      ...(!traits.biases.head && !traits.normalizedHead && { [head]: 'head' as const }),
    },
    // Latents and recurrences are computed from all tokens on each rank.
    ...(!traits.latent &&
      (body.embedDim ?? body.channels) === body.channels &&
      !traits.layerKinds &&
      !traits.delta &&
      !traits.conv &&
      !body.mamba && {
        sequence: {
          body: model,
          first: `${list}.0`,
          byToken: [
            ...names.map((name) => `${list}.*.${name}`),
            ...[lastNorm(body)].flatMap((name) => (name === null ? [] : [`${model}.${name}`])),
            ...(hasShared && isGated ? [`${mlp}.shared_expert_gate`] : []),
            ...(moe?.latentDim == null
              ? []
              : [`${attention}.fc1_latent_proj`, `${attention}.fc2_latent_proj`]),
          ],
        },
      }),
    taken: (here, of) => {
      if (traits.perGroup) requireWholeGroups(body, here);
      takeHeads(here, of);
    },
  };
}

const attentionStyles = (body: BodySizes, path: string): Styles => ({
  [path]: 'attention',
  ...projectionStyles(body, path),
  [`${path}.${body.traits.out ?? 'o_proj'}`]: { style: 'row', heads: 'queries' },
  ...headNormStyles(body, path),
});

/** Returns the styles of blocks with one branch, by layer; state space layers stay whole. */
function branchStyles(body: BodySizes, path: string): Styles {
  const { layers, mamba, feedLayers, moe } = body;
  const styles = Array.from({ length: layers }, (_, layer): Styles => {
    const own = path.replace('*', String(layer));
    if (mamba?.layers[layer]) return {};
    if (!feedLayers?.[layer]) return attentionStyles(body, own);
    const isSparse = moe && !moe.denseLayers.includes(layer);
    return isSparse ? { ...expertStyles(own), ...sharedStyles(body, own) } : feedStyles(body, own);
  });
  return Object.assign({}, ...styles) as Styles;
}

/** Returns the styles of layers without a window, in models where these have other heads. */
function kindStyles(
  { heads, kvHeads, full, isFull, traits }: BodySizes,
  attention: string,
): Styles {
  if (!full || full.kvHeads === kvHeads) return {};
  const counts = { queries: heads, keys: full.kvHeads };
  const layers = isFull.flatMap((isOne, layer) => (isOne ? [layer] : []));
  return Object.fromEntries(
    layers.flatMap((layer) => {
      const path = attention.replace('*', String(layer));
      return [
        [path, { style: 'attention', counts }],
        [`${path}.q_proj`, { style: 'column', heads: 'queries', counts }],
        [`${path}.k_proj`, { style: 'column', heads: 'keys', counts }],
        [`${path}.${traits.out ?? 'o_proj'}`, { style: 'row', heads: 'queries', counts }],
      ] as const;
    }),
  );
}

/** Throws if two ranks share a key head: one projection computes the head and all its queries. */
function requireWholeGroups(
  { heads, kvHeads, traits }: BodySizes,
  here: { queries: number; keys: number },
): void {
  if (here.queries / here.keys === heads / kvHeads) return;
  throw argumentError(
    `tensor_parallel of ${traits.name}`,
    `at most ${kvHeads} ranks, one for each key head`,
    'several ranks with the same key head',
    'Lower tensor_parallel.autotp_size.',
  );
}

function projectionStyles({ traits, latent, isFull, full }: BodySizes, path: string): Styles {
  const { packed, perHead } = traits;
  const hasValues = !full?.keysAsValues || isFull.includes(false);
  if (latent) {
    const names = [latent.queryRank === null ? 'q_proj' : 'q_b_proj', 'kv_b_proj'];
    const style = { style: 'column', heads: 'queries' } as const;
    return Object.fromEntries(names.map((name) => [`${path}.${name}`, style]));
  }
  if (perHead) return { [`${path}.${perHead}`]: { style: 'column', heads: 'keys' } };
  if (packed) {
    return {
      [`${path}.${traits.names?.qkv ?? 'qkv_proj'}`]: {
        style: 'column',
        heads: ['queries', 'keys', 'keys'],
      },
    };
  }
  return {
    [`${path}.q_proj`]: { style: 'column', heads: 'queries' },
    [`${path}.k_proj`]: { style: 'column', heads: 'keys' },
    ...(traits.gated === 'apart' && {
      [`${path}.gate_proj`]: { style: 'column', heads: 'queries' } as const,
    }),
    ...(hasValues && { [`${path}.v_proj`]: { style: 'column', heads: 'keys' } as const }),
  };
}

function headNormStyles({ traits: { qkNorm = 'none', names } }: BodySizes, path: string): Styles {
  if (qkNorm === 'none' || qkNorm === 'bareHead') return {};
  const [q, k] = [names?.qNorm ?? 'q_norm', names?.kNorm ?? 'k_norm'];
  if (qkNorm === 'head') return { [`${path}.${q}`]: 'perHead', [`${path}.${k}`]: 'perHead' };
  return {
    [`${path}.${q}`]: { style: 'headsNorm', heads: 'queries' },
    [`${path}.${k}`]: { style: 'headsNorm', heads: 'keys' },
  };
}

/** Sparse gates depend on all gates of a token, so these blocks stay whole. */
function denseStyles(body: BodySizes, path: string): Styles {
  const { sparsity } = body.altUp ?? {};
  if (!sparsity) return feedStyles(body, path);
  const styles = sparsity.map((share, layer) =>
    share === 0 ? feedStyles(body, path.replace('*', String(layer))) : {},
  );
  return Object.assign({}, ...styles) as Styles;
}

function feedStyles({ traits }: BodySizes, path: string): Styles {
  const { feed = traits.packed ? 'packed' : 'gated' } = traits;
  if (feed === 'gated') return gatedStyles(path);
  if (feed === 'packed') return packedStyles(path);
  return {
    [`${path}.${feed.first}`]: 'column',
    [`${path}.${feed.second}`]: 'row',
    ...(traits.activation?.kind === 'xielu' && { [`${path}.act_fn`]: 'perHead' as const }),
  };
}

/** Returns the styles of experts only; null if no layer has experts. */
export function rotaryExpertPlan(body: BodySizes): Styles | null {
  const { moe, layers, traits } = body;
  if (!moe || moe.denseLayers.length === layers) return null;
  const { attention, list, mlp } = modulePaths(body);
  if (traits.moe?.beside) return besideStyles(`${list}.*`);
  if (!traits.oneBranch) return expertStyles(mlp);
  const sparse = [...Array(layers).keys()].filter((layer) => !moe.denseLayers.includes(layer));
  const styles = sparse.map((layer) => expertStyles(attention.replace('*', String(layer))));
  return Object.assign({}, ...styles) as Styles;
}

/** Returns the styles of a shared expert. */
function sharedStyles(body: BodySizes, path: string): Styles {
  const shared = body.traits.moe?.shared;
  if (shared === 'plain') return feedStyles(body, `${path}.shared_experts`);
  if (shared === 'joined') return packedStyles(`${path}.shared_experts`);
  return gatedStyles(`${path}.${shared === true ? 'shared_expert' : 'shared_experts'}`);
}

const packedStyles = (path: string): Styles => ({
  [`${path}.gate_up_proj`]: { style: 'column', parts: 2 },
  [`${path}.down_proj`]: 'row',
});

const gatedStyles = (path: string): Styles => ({
  [`${path}.gate_proj`]: 'column',
  [`${path}.up_proj`]: 'column',
  [`${path}.down_proj`]: 'row',
});

/** Returns the styles of experts beside a dense block. */
const besideStyles = (path: string): Record<string, StyleName> => ({
  [`${path}.router`]: 'perHead',
  [`${path}.experts`]: 'experts',
});

/** Each rank has the router's gradient from its own experts. */
const expertStyles = (path: string): Record<string, StyleName> => ({
  [`${path}.gate`]: 'perHead',
  [`${path}.experts`]: 'experts',
});
