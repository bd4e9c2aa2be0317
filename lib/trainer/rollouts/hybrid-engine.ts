// HybridEngine: an engine that trains, and generates text with the weights in training. Source:
// DeepSpeed-Chat.
import { Engine } from '../../engine/engine.js';
import type { GenerateRequest, Generation } from '../../inference/index.js';
import type { CausalLM } from '../../models/causal-lm.js';
import { requireNoSurplus } from '../../runtime/require-type.js';
import type { Tokenizer } from '../../text/index.js';
import { type Rollouts, rolloutsOf } from './rollouts.js';

/**
 * The engine that initialize() returns for `hybrid_engine.enabled`. It trains as Engine does.
 * generate() samples with the weights in training.
 */
export class HybridEngine extends Engine {
  /** Tokenizer for text prompts and completions. Set it before the first generate(). */
  tokenizer: Tokenizer | null = null;
  private rollouts: Rollouts | null = null;

  /**
   * Resolves with the completions of each request. All ranks must call it between updates, each
   * with its own requests. The model keeps its mode. Rejects as InferenceEngine.generateBatch()
   * does.
   */
  async generate(requests: readonly GenerateRequest[]): Promise<Generation[][]>;
  async generate(
    requests: readonly GenerateRequest[],
    ...surplus: readonly unknown[]
  ): Promise<Generation[][]> {
    requireNoSurplus('engine.generate', surplus, 'Options of sampling are fields of a request.');
    this.calls.requireReadable('engine.generate');
    const {
      max_out_tokens: max,
      release_inference_cache: releaseCache,
      enable_cuda_graph: enableCudaGraph,
    } = this.config.hybrid_engine;
    const maxTokens = Math.min(max, (this.module as CausalLM).sharedAnglesSeq);
    const { tokenizer } = this;
    this.rollouts ??= rolloutsOf(this, {
      tokenizer,
      maxTokens,
      releaseCache,
      enableCudaGraph,
    });
    return this.rollouts.generate(requests);
  }

  override destroy(): void {
    // The error of a running request is reported by generate(), so it is ignored here.
    this.rollouts?.destroy().catch(() => {});
    super.destroy();
  }
}
