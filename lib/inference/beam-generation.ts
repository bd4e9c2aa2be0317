// Runs a beam search for a request and decodes its results.

import type { CausalLM } from '../models/index.js';
import { required } from '../runtime/required.js';
import type { Tokenizer } from '../text/index.js';
import { type Beam, beamSearch } from './beams.js';
import type { Generation } from './continuation.js';
import type { ReadRequest } from './request.js';

/** Returns the best sequences. Rejects with the signal's reason after an abort. */
export async function searchBeams(
  model: CausalLM,
  request: ReadRequest,
  { tokenizer, signal }: { tokenizer: Tokenizer | null; signal: AbortSignal },
): Promise<Generation[]> {
  const { prompt, maxNewTokens, stopTokens, n, sampling, beams } = request;
  request.onStart?.();
  const signals = request.signal ? [signal, request.signal] : [signal];
  const common = { promptTokens: prompt.length, cachedTokens: 0 };
  const results = await beamSearch(model, prompt, {
    numBeams: 1,
    ...beams,
    ...sampling,
    maxNewTokens,
    n,
    tokenizer,
    stopTokens: [...stopTokens],
    signal: AbortSignal.any(signals),
  });
  return results.map((beam) => ({ ...common, ...serializeBeam(beam, request, tokenizer) }));
}

function serializeBeam({ tokens }: Beam, request: ReadRequest, tokenizer: Tokenizer | null) {
  const { stopTokens, textBefore: after } = request;
  const hasEnded = stopTokens.has(required(tokens.at(-1)));
  const newTokens = hasEnded ? tokens.slice(0, -1) : tokens;
  const stream = tokenizer?.decodeStream({ after });
  const text = stream ? stream.push(newTokens) + stream.end() : '';
  return { text, tokens, finishReason: hasEnded ? ('stop' as const) : ('length' as const) };
}
