// The scheduler section of ds_config.json: one type per learning-rate schedule, in DeepSpeed's or
// PyTorch's spelling.

export type SchedulerConfig =
  | { type: 'WarmupLR'; params?: WarmupParams }
  | { type: 'WarmupDecayLR'; params: WarmupDecayParams }
  | { type: 'WarmupCosineLR'; params: WarmupCosineParams }
  | { type: 'OneCycle'; params: OneCycleParams }
  | { type: 'LRRangeTest'; params?: LrRangeTestParams }
  | { type: 'CosineAnnealingLR'; params: CosineAnnealingParams }
  | { type: 'StepLR'; params: StepParams }
  | { type: 'ExponentialLR'; params: ExponentialParams }
  | { type: 'PolynomialLR'; params?: PolynomialParams }
  | { type: 'ConstantLR'; params?: ConstantParams }
  | { type: 'ReduceLROnPlateau'; params?: PlateauParams };

export interface WarmupParams {
  /** Rate before the first update. Default 0. */
  warmup_min_lr?: number;
  /** Rate after the warm-up; null takes the optimizer's. Default null. */
  warmup_max_lr?: number | null;
  /** Updates of the warm-up; fewer than 2 count as 2. Default 1000. */
  warmup_num_steps?: number;
  /** Shape of the climb. Default "log". */
  warmup_type?: 'log' | 'linear';
}

export interface WarmupDecayParams extends Omit<WarmupParams, 'warmup_max_lr'> {
  /** Updates of the whole run, warm-up included. */
  total_num_steps: number;
  /** Rate after the warm-up. Default 1e-3. */
  warmup_max_lr?: number;
}

export interface WarmupCosineParams {
  /** Updates of the whole run, warm-up included. */
  total_num_steps: number;
  /** Share of the optimizer's rate at the start. Default 0. */
  warmup_min_ratio?: number;
  /** Updates of the warm-up; fewer than 2 count as 2. Default 1000. */
  warmup_num_steps?: number;
  /** Share of the optimizer's rate at the end. Default 1e-4. */
  cos_min_ratio?: number;
  /** Shape of the climb. Default "log". */
  warmup_type?: 'log' | 'linear';
}

export interface OneCycleParams {
  /** Rate at both ends of the cycle. */
  cycle_min_lr: number;
  /** Rate at its peak. */
  cycle_max_lr: number;
  /** The rate is divided by 1 + this per decay_step_size updates after the cycle. Default 0. */
  decay_lr_rate?: number;
  /** Updates of the climb. Default 2000. */
  cycle_first_step_size?: number;
  /** Updates of the fall; null takes those of the climb. Default null. */
  cycle_second_step_size?: number | null;
  /** Stairs of the climb; 0 is a straight line. Default 0. */
  cycle_first_stair_count?: number;
  /** Stairs of the fall; null takes those of the climb. Default null. */
  cycle_second_stair_count?: number | null;
  /** Updates of one unit of decay; 0 switches both decays off. Default 0. */
  decay_step_size?: number;
  /** Schedules the first beta against the rate, and sets the second to 0.99. Default true. */
  cycle_momentum?: boolean;
  /** Momentum at the peak of the rate. Default 0.8. */
  cycle_min_mom?: number;
  /** Momentum at the ends of the cycle. Default 0.9. */
  cycle_max_mom?: number;
  /** The momentum is multiplied by 1 + this per decay_step_size updates. Default 0. */
  decay_mom_rate?: number;
}

export interface LrRangeTestParams {
  /** Rate of the first update. Default 1e-3. */
  lr_range_test_min_lr?: number;
  /** Updates of one interval. Default 2000. */
  lr_range_test_step_size?: number;
  /** Share of the first rate that one interval adds. Default 1. */
  lr_range_test_step_rate?: number;
  /** Grows once per interval instead of at every update. Default false. */
  lr_range_test_staircase?: boolean;
}

export interface CosineAnnealingParams {
  /** Updates of half a period. */
  T_max: number;
  /** Rate at the bottom. Default 0. */
  eta_min?: number;
}

export interface StepParams {
  /** Updates between two multiplications. */
  step_size: number;
  /** Factor of the rate. Default 0.1. */
  gamma?: number;
}

export interface ExponentialParams {
  /** Factor of the rate at every update. */
  gamma: number;
}

export interface PolynomialParams {
  /** Updates until the rate is zero. Default 5. */
  total_iters?: number;
  /** 1 is a straight line. Default 1. */
  power?: number;
}

export interface ConstantParams {
  /** Share of the rate for the first updates. Default 1/3. */
  factor?: number;
  /** Updates that run at the share. Default 5. */
  total_iters?: number;
}

/** The schedule's observe(metric) drives it. */
export interface PlateauParams {
  /** Whether a smaller or a larger metric is better. Default "min". */
  mode?: 'min' | 'max';
  /** Each reduction multiplies the rate by this. Default 0.1. */
  factor?: number;
  /** Observations without improvement that are tolerated. Default 10. */
  patience?: number;
  /** The least improvement that counts. Default 1e-4. */
  threshold?: number;
  /** Whether the threshold is a share of the best metric or a difference. Default "rel". */
  threshold_mode?: 'rel' | 'abs';
  /** Observations after a reduction that do not count. Default 0. */
  cooldown?: number;
  /** The rate is never lowered below this. Default 0. */
  min_lr?: number;
  /** A reduction by no more than this is not made. Default 1e-8. */
  eps?: number;
}
