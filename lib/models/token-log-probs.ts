// Computes log-probabilities of single tokens, for policy losses.
import {
  checkpointParts,
  concat,
  embedding,
  noGrad,
  runBatchInvariant,
  scope,
  Tensor,
  zeros,
} from '../tensor/index.js';

/** How the log-probabilities of tokens are computed. */
export interface TokenLogProbOptions {
  /** Divides the logits. Default: 1. */
  temperature?: number;
  /** Adds the entropies of the distributions: the result is [2, B, T]. Default: false. */
  entropies?: boolean;
  /**
   * Computes the bits that an inference engine with `batch_invariant` records, for any batch.
   * Slower. Default: false.
   */
  batchInvariant?: boolean;
}

/** Opens scope() in the mode of the options. */
export const scopeFor = (options: TokenLogProbOptions | undefined, body: () => Tensor): Tensor =>
  runBatchInvariant(() => scope(body), options?.batchInvariant ?? false);

/** Maps hidden states [1, N, channels] to logits [1, N, V]. */
type LogitsOf = (x: Tensor) => Tensor;

/** Logits above this number are computed again in the backward, in chunks of this size. */
const KEPT_LOGITS = 2 ** 27;

/**
 * Returns the log-probabilities of targets [B, T] after hidden states x [B, T, channels]: [B, T]
 * f32, 0 for ignored targets. The head runs only for other targets; the host waits for them.
 */
export function tokenLogProbs(
  x: Tensor,
  targets: Tensor,
  logitsOf: LogitsOf,
  { ignored, vocabSize, ...options }: TokenLogProbOptions & { ignored: number; vocabSize: number },
): Tensor {
  return scope(() => {
    const { device } = x;
    const targetIds = targets.toArray();
    const at = targetIds.flatMap((target, i) => (Number(target) === ignored ? [] : [i]));
    // Without targets, one row keeps the result in the graph of the model.
    const rows = at.length > 0 ? at : [0];
    const keptRows = embedding(x.reshape([targetIds.length, x.size(-1)]), toIndex(rows, device));
    const targetRows = rows.map((row) => Math.max(0, Number(targetIds[row])));
    const max = Math.max(1, Math.floor(KEPT_LOGITS / vocabSize));
    const part = (states: Tensor, ids: Tensor): Tensor =>
      rowsLogProbs(logitsOf(states.unsqueeze(0)), ids, options);
    const parts: [states: Tensor, ids: Tensor][] = [];
    for (let from = 0; from < rows.length; from += max) {
      const count = Math.min(max, rows.length - from);
      const ids = toIndex(targetRows.slice(from, from + count), device);
      parts.push([keptRows.narrow(0, from, count).contiguous(), ids]);
    }
    // As inputs of a checkpoint, the ids live until the backward; this scope frees them.
    const isWhole = parts.length === 1;
    const chunks = isWhole ? parts.map((item) => part(...item)) : checkpointParts(part, parts);
    const rowLogProbs = concat([...chunks, zeros([chunks[0]?.size(0) ?? 1, 1], { device })], 1);
    const places = new Int32Array(targetIds.length).fill(rows.length);
    for (const [i, row] of at.entries()) places[row] = i;
    const values = embedding(
      rowLogProbs.transpose(0, 1).contiguous(),
      Tensor.from(places, { device }),
    );
    const both = values.transpose(0, 1).reshape([rowLogProbs.size(0), ...targets.shape]);
    return options.entropies ? both : both.squeeze(0);
  });
}

const toIndex = (values: readonly number[], device: Tensor['device']): Tensor =>
  Tensor.from(Int32Array.from(values), { device });

/**
 * Returns log-probabilities [.., V] of logits [.., V], which are divided by the temperature first.
 */
export const computeLogProbs = (logits: Tensor, temperature: number): Tensor => {
  const wide = logits.to('f32');
  return (temperature === 1 ? wide : wide.div(temperature)).logSoftmax(-1);
};

/** Returns log-probabilities [1, N] of `ids` [N] from logits [1, N, V]; [2, N] with entropies. */
function rowsLogProbs(
  logits: Tensor,
  ids: Tensor,
  { temperature = 1, entropies = false }: TokenLogProbOptions,
): Tensor {
  const logs = computeLogProbs(logits.squeeze(0), temperature);
  const picked = logs.gather(-1, ids.to('i64').unsqueeze(1)).transpose(0, 1);
  if (!entropies) return picked;
  const entropy = noGrad(() => logs.exp().mul(logs).sum(-1).neg().unsqueeze(0));
  return concat([picked, entropy], 0);
}
