// Communication between the ranks of a job.
export {
  bandwidth,
  CommsLogger,
  type CommsLoggerOptions,
  type CommsTotal,
} from './comms-logger.js';
export {
  Distributed,
  distributed,
  type InitOptions,
  initDistributed,
  joinLaunched,
} from './distributed.js';
export { type CollectiveOptions, ProcessGroup, type ReduceOp, Work } from './process-group.js';
