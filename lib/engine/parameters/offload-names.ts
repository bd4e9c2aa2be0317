// The states that offloadStates() moves, by DeepSpeed's names.

/** States of an engine that offloadStates() can move to host memory. */
export type OffloadState =
  | 'optim_states'
  | 'hp_params'
  | 'lp_params'
  | 'lp_grads'
  | 'contiguous_grad_buffer';

/** All names of OffloadState. */
export const OFFLOAD_STATES: readonly OffloadState[] = [
  'optim_states',
  'hp_params',
  'lp_params',
  'lp_grads',
  'contiguous_grad_buffer',
];

/** The states that backward() uses. */
export const BACKWARD_STATES: readonly OffloadState[] = [
  ...(['lp_params', 'lp_grads', 'contiguous_grad_buffer'] as const),
];
