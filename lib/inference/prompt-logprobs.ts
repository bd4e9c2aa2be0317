// Computes logprobs of a prompt's tokens, for evaluation by likelihood.
import type { CausalLM } from '../models/index.js';
import { inRows } from '../models/places.js';
import { required } from '../runtime/required.js';
import { indexSelect, logsumexp, noGrad, scope, Tensor, topk } from '../tensor/index.js';
import type { TokenLogprob } from './sampling.js';

/** Rows of logits per computation: all rows of a long prompt would need gigabytes. */
const ROWS = 256;

/**
 * Returns the logprob of each token given the tokens before it, with the `top` likeliest
 * alternatives; null for the first token. A token and its alternatives use the same computation, so
 * equal tokens get equal values. Waits for the device.
 */
export function promptLogprobs(
  model: CausalLM,
  prompt: readonly number[],
  top: number,
): (TokenLogprob | null)[] {
  const logprobs: (TokenLogprob | null)[] = [null];
  if (prompt.length < 2) return logprobs.slice(0, prompt.length);
  const { device } = model.computesIn;
  noGrad(() =>
    scope(() => {
      const inputs = Int32Array.from(prompt.slice(0, -1));
      const shape = [1, inputs.length];
      const x = model.hidden(Tensor.from(inputs, { shape, device }), inRows);
      for (let at = 0; at < inputs.length; at += ROWS) {
        const count = Math.min(ROWS, inputs.length - at);
        const rows = x
          .narrow(1, at, count)
          .reshape([count, x.size(2)])
          .contiguous();
        const targets = prompt.slice(at + 1, at + 1 + count);
        logprobs.push(...scope(() => scoreRows(model.logitsOf(rows).to('f32'), targets, top)));
      }
    }),
  );
  return logprobs;
}

function scoreRows(logits: Tensor, targets: readonly number[], top: number): TokenLogprob[] {
  const [count = 0, width = 0] = logits.shape;
  const { device } = logits;
  const places = targets.map((token, row) => row * width + token);
  const index = Tensor.from(places, { dtype: 'i64', device });
  const scores = indexSelect(logits.reshape([count * width]), 0, index).toArray();
  const sums = logsumexp(logits, -1).toArray();
  const max = Math.min(top, width);
  const likely = max > 0 ? topk(logits, max) : null;
  const [values = [], tokens = []] = likely
    ? [likely.values.toArray(), likely.indices.toArray().map(Number)]
    : [];
  return targets.map((token, row) => {
    const sum = required(sums[row]);
    const alternatives = Array.from({ length: max }, (_, i) => ({
      token: required(tokens[row * max + i]),
      logprob: required(values[row * max + i]) - sum,
    }));
    return { token, logprob: required(scores[row]) - sum, top: alternatives };
  });
}
