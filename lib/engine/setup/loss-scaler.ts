// Creates the loss scaler from the section fp16.
import type { ResolvedConfig } from '../../../types/config.js';
import { DynamicLossScaler, type LossScaler, StaticLossScaler } from '../../optim/loss-scale.js';

/** Returns scale 1 without fp16, a static scale with loss_scale, else a dynamic one. */
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
