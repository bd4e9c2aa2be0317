// Alternating updates: the stream has several versions of each token's vector. A block predicts
// them, computes with the first one, and corrects all by its result. Source: Baykal et al. 2023.
import { zeros } from '../../nn/initializers.js';
import { Linear } from '../../nn/linear.js';
import { Module } from '../../nn/module.js';
import { Parameter } from '../../nn/parameter.js';
import { leading, required } from '../../runtime/required.js';
import {
  clamp,
  concat,
  linear,
  maximum,
  sqrt,
  square,
  type Tensor,
  tanh,
} from '../../tensor/index.js';
import type { AltUpSizes } from './alt-up-config.js';
import type { BodySizes } from './config.js';
import { createNorm, type Norm } from './norms.js';

/** Least mean of squares of a version, as in transformers' Gemma3nTextModel. */
const LEAST_SQUARE = 1e-5;
/** Keeps the gradient of the length of a zero vector finite. */
const TINY = 1e-30;

/** Predicts and corrects the versions of a stream. */
export class AltUp extends Module {
  /** Factors [channels] of the first version before the block's further embedding. */
  readonly correct_output_scale: Parameter;
  /** Maps scores of a token to one coefficient for each version. */
  readonly correction_coefs: Linear;
  /** Maps scores of a token to a matrix [inputs, inputs]. */
  readonly prediction_coefs: Linear;
  /** Maps channels to `inputs` scores. */
  readonly modality_router: Linear;
  /** Before these scores. */
  readonly router_norm: Norm;
  private readonly sizes: AltUpSizes;

  /** The weights of one block. */
  constructor(body: BodySizes) {
    super();
    const { channels } = body;
    this.sizes = required(body.altUp);
    const { inputs } = this.sizes;
    this.correct_output_scale = new Parameter([channels], zeros);
    this.correction_coefs = new Linear(inputs, inputs, { bias: false });
    this.prediction_coefs = new Linear(inputs, inputs ** 2, { bias: false });
    this.modality_router = new Linear(channels, inputs, { bias: false });
    this.router_norm = createNorm(body, channels) as Norm;
  }

  /** Returns the predictions of a stream, both [B, T, inputs, channels]. */
  override forward(versions: Tensor): Tensor {
    const [B, T, n] = leading(versions.shape, 3);
    const scores = this.scoresOf(versions.select(2, 0));
    const coefs = this.bounded(this.prediction_coefs, scores).reshape([B, T, n, n]);
    return coefs.matmul(versions).add(versions);
  }

  /** Returns the predictions [B, T, inputs, channels], corrected by a result [B, T, channels]. */
  correct(predictions: Tensor, result: Tensor): Tensor {
    const change = result.sub(predictions.select(2, 0)).unsqueeze(2);
    const coefs = this.bounded(this.correction_coefs, this.scoresOf(result)).add(1);
    return change.mul(coefs.unsqueeze(3)).add(predictions);
  }

  /** Returns scores [B, T, inputs] of vectors [B, T, channels]. */
  private scoresOf(x: Tensor): Tensor {
    const normed = this.router_norm.call(x).mul(1 / x.size(-1));
    const scores = this.modality_router.call(normed);
    return tanh(scores.to(scores.dtype === 'f64' ? 'f64' : 'f32')).to(x.dtype);
  }

  /** transformers bounds the weights of coefficients in training. */
  private bounded(layer: Linear, scores: Tensor): Tensor {
    const { coefClip } = this.sizes;
    if (!this.training || coefClip === null || !layer.isPlainProduct) return layer.call(scores);
    return linear(scores, clamp(layer.weight, -coefClip, coefClip));
  }
}

/** A low-rank residual. Source: LAuReL, Menghani et al. 2024. */
export class LaurelBlock extends Module {
  /** Maps channels to the rank. */
  readonly linear_left: Linear;
  /** Maps the rank to channels. */
  readonly linear_right: Linear;
  /** Behind both. */
  readonly post_laurel_norm: Norm;

  /** The weights of one block. */
  constructor(body: BodySizes) {
    super();
    const { channels, altUp } = body;
    const { laurelRank } = required(altUp);
    this.linear_left = new Linear(channels, laurelRank, { bias: false });
    this.linear_right = new Linear(laurelRank, channels, { bias: false });
    this.post_laurel_norm = createNorm(body, channels) as Norm;
  }

  /** Maps [.., channels] to the same shape. */
  override forward(x: Tensor): Tensor {
    return this.post_laurel_norm.call(this.linear_right.call(this.linear_left.call(x))).add(x);
  }
}

/** Modules of a model that create the versions, and that join them. */
export const [ENTRY, EXIT] = ['altup_projections', 'altup_unembed_projections'] as const;

type VersionModules = Record<typeof ENTRY | typeof EXIT, readonly Linear[]>;

/** Adds these modules to a model. */
export function addVersions(model: Module, { channels, altUp }: BodySizes): void {
  if (!altUp) return;
  const createAll = () =>
    Array.from({ length: altUp.inputs - 1 }, () => new Linear(channels, channels, { bias: false }));
  Object.assign(model, { [ENTRY]: createAll(), [EXIT]: createAll() });
}

const meanSquare = (x: Tensor): Tensor => square(x).mean({ dim: -1, keepDim: true });

/** Returns y with the length of x. */
function withLengthOf(x: Tensor, y: Tensor): Tensor {
  const length = sqrt(maximum(meanSquare(x), TINY));
  return y.mul(length).div(sqrt(maximum(meanSquare(y), LEAST_SQUARE)));
}

/** Returns the stream [B, T, inputs * channels] of an embedding x [B, T, channels]. */
export function enterVersions(model: Module, { altUp }: BodySizes, x: Tensor): Tensor {
  if (!altUp) return x;
  const layers = (model as unknown as VersionModules)[ENTRY];
  return concat([x, ...layers.map((layer) => withLengthOf(x, layer.call(x)))], 2);
}

/** Returns the mean [B, T, channels] of the versions of a stream. */
export function joinVersions(
  model: Module,
  { altUp, channels }: BodySizes,
  stream: Tensor,
): Tensor {
  if (!altUp) return stream;
  const layers = (model as unknown as VersionModules)[EXIT];
  const first = stream.narrow(2, 0, channels);
  return layers
    .map((layer, i) => layer.call(stream.narrow(2, (i + 1) * channels, channels)))
    .reduce((sum, version) => sum.add(withLengthOf(first, version)), first)
    .mul(1 / altUp.inputs);
}
