// ds_config.json: what users write (DsConfig) and what the engine reads (ResolvedConfig).
import type { ResolvedValues } from './config.generated.js';

export type * from './config.generated.js';

/**
 * What the engine reads: defaults filled in, the batch triad complete, everything checked and
 * frozen.
 */
export interface ResolvedConfig extends ResolvedValues {
  /** One line for each key that was accepted without having an effect. */
  readonly notices: readonly string[];
}
