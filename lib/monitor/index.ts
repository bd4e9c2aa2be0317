// The door of the monitor room.
export { Progress, type ProgressOptions, progressLine, type StepReport } from './progress.js';
