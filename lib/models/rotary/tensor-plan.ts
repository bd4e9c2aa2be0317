// The split of a model over ranks, from the declaration of its family.
import type { LayerStyle, StyleName, TensorPlan } from '../../parallel/plan.js';
import { lastNorm } from './body.js';
import type { Body } from './config.js';

type Styles = Record<string, StyleName | LayerStyle>;

const ATTENTION = 'model.layers.*.self_attn';
const MLP = 'model.layers.*.mlp';

/** The plan of all layers; `taken` receives this rank's heads. */
export function rotaryTensorPlan(body: Body, taken: NonNullable<TensorPlan['taken']>): TensorPlan {
  const { heads, kvHeads, moe, layers, traits, norms } = body;
  const sparse = moe ? layers - moe.denseLayers.length : 0;
  const hasShared = sparse > 0 && moe?.sharedHidden != null;
  const names = [...norms.attention, ...norms.mlp].filter((name) => name !== null);
  return {
    heads: { queries: heads, keys: kvHeads },
    layers: {
      'model.embed_tokens': 'vocabulary',
      [ATTENTION]: 'attention',
      ...(traits.packed ? packedStyles : projectionStyles),
      [`${ATTENTION}.${traits.out ?? 'o_proj'}`]: { style: 'row', heads: 'queries' },
      ...headNormStyles(body),
      ...(sparse < layers && feedStyles(body)),
      ...(sparse > 0 && expertStyles(MLP)),
      ...(hasShared && gatedStyles(`${MLP}.shared_expert`)),
      // A head with a bias stays whole, because the split loss has none.
      ...(!traits.biases.head && { lm_head: 'head' as const }),
    },
    sequence: {
      body: 'model',
      first: 'model.layers.0',
      byToken: [
        ...names.map((name) => `model.layers.*.${name}`),
        `model.${lastNorm(body)}`,
        ...(hasShared ? [`${MLP}.shared_expert_gate`] : []),
      ],
    },
    taken,
  };
}

const projectionStyles: Styles = {
  [`${ATTENTION}.q_proj`]: { style: 'column', heads: 'queries' },
  [`${ATTENTION}.k_proj`]: { style: 'column', heads: 'keys' },
  [`${ATTENTION}.v_proj`]: { style: 'column', heads: 'keys' },
};

const packedStyles: Styles = {
  [`${ATTENTION}.qkv_proj`]: { style: 'column', heads: ['queries', 'keys', 'keys'] },
};

function headNormStyles({ traits: { qkNorm = 'none' } }: Body): Styles {
  if (qkNorm === 'none') return {};
  if (qkNorm === 'head') {
    return { [`${ATTENTION}.q_norm`]: 'perHead', [`${ATTENTION}.k_norm`]: 'perHead' };
  }
  return {
    [`${ATTENTION}.q_norm`]: { style: 'headsNorm', heads: 'queries' },
    [`${ATTENTION}.k_norm`]: { style: 'headsNorm', heads: 'keys' },
  };
}

function feedStyles({ traits }: Body): Styles {
  const { feed = traits.packed ? 'packed' : 'gated' } = traits;
  if (feed === 'gated') return gatedStyles(MLP);
  if (feed === 'packed') {
    return {
      [`${MLP}.gate_up_proj`]: { style: 'column', parts: 2 },
      [`${MLP}.down_proj`]: 'row',
    };
  }
  return { [`${MLP}.${feed.first}`]: 'column', [`${MLP}.${feed.second}`]: 'row' };
}

const gatedStyles = (path: string): Styles => ({
  [`${path}.gate_proj`]: 'column',
  [`${path}.up_proj`]: 'column',
  [`${path}.down_proj`]: 'row',
});

/** Each rank has the router's gradient from its own experts. */
export const expertStyles = (path: string): Record<string, StyleName> => ({
  [`${path}.gate`]: 'perHead',
  [`${path}.experts`]: 'experts',
});
