// The fp16 section of a configuration to a loss scaler.
import type { ResolvedConfig } from '../../../types/config.js';
import { DynamicLossScaler, type LossScaler, StaticLossScaler } from '../../optim/loss-scale.js';

/** Without fp16 the factor is 1; with a loss_scale it stays. */
export function buildScaler({ fp16 }: ResolvedConfig): LossScaler {
  if (!fp16.enabled) return new StaticLossScaler(1);
  if (fp16.loss_scale > 0) return new StaticLossScaler(fp16.loss_scale);
  return new DynamicLossScaler({
    initialScalePower: fp16.initial_scale_power,
    window: fp16.loss_scale_window,
    hysteresis: fp16.hysteresis,
    consecutiveHysteresis: fp16.consecutive_hysteresis,
    minScale: fp16.min_loss_scale,
  });
}
