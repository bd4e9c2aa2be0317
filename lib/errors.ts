// The one error type of the library: errors are data, with the place, what was expected and what to
// do.

/** Stable machine-readable codes; the text may change, these do not. */
export type DsErrorCode =
  | 'DS_SHAPE'
  | 'DS_DTYPE'
  | 'DS_DEVICE'
  | 'DS_INDEX'
  | 'DS_BOUNDS'
  | 'DS_RELEASED'
  | 'DS_OUT_OF_MEMORY'
  | 'DS_CUDA'
  | 'DS_LIBRARY'
  | 'DS_ARGUMENT'
  | 'DS_CONFIG'
  | 'DS_AUTOGRAD'
  | 'DS_NONFINITE'
  | 'DS_DATA'
  | 'DS_CHECKPOINT'
  | 'DS_IO'
  | 'DS_COMM'
  | 'DS_PLATFORM'
  | 'DS_LIMIT'
  | 'DS_INTERNAL';

/** What a DsError is made of. */
export interface DsErrorFields {
  /** Which kind of mistake or failure it is. */
  code: DsErrorCode;
  /** The operation or place ("matmul", "zero_optimization.stage", a file). */
  op: string;
  /** What would have been right. */
  expected: string;
  /** What was there instead. */
  got: string;
  /** What to do about it; may be empty. */
  hint?: string;
  /** What led to it. */
  cause?: unknown;
}

/**
 * Frames of a native failure's stack: a model's modules lie between the addon and the program's own
 * line.
 */
const FRAMES = 60;

/** Thrown by every part of the library. `message` is "op: expected X, got Y. hint". */
export class DsError extends Error {
  /** Which kind of mistake or failure it is: what programs branch on. */
  readonly code: DsErrorCode;
  /** The operation, the option or the key of the configuration that failed. */
  readonly op: string;
  /** What would have been right. */
  readonly expected: string;
  /** What was there instead. */
  readonly got: string;
  /** What to do about it; "" where there is nothing to say. */
  readonly hint: string;

  constructor(fields: DsErrorFields) {
    const hint = fields.hint ? ` ${fields.hint}` : '';
    super(`${fields.op}: expected ${fields.expected}, got ${fields.got}.${hint}`, {
      cause: fields.cause,
    });
    this.name = 'DsError';
    this.code = fields.code;
    this.op = fields.op;
    this.expected = fields.expected;
    this.got = fields.got;
    this.hint = fields.hint ?? '';
  }

  /**
   * Turns what the addon threw into a DsError whose stack is the JavaScript call site, down to the
   * program's own line; anything else is returned unchanged.
   */
  static fromNative(thrown: unknown): unknown {
    if (thrown instanceof DsError) return thrown;
    const native = thrown as Partial<DsErrorFields> | null;
    if (!native || typeof native !== 'object' || typeof native.code !== 'string' || !native.op) {
      return thrown;
    }
    const { stackTraceLimit } = Error;
    Error.stackTraceLimit = Math.max(stackTraceLimit, FRAMES);
    try {
      return new DsError({
        code: native.code,
        op: native.op,
        expected: String(native.expected),
        got: String(native.got),
        hint: native.hint,
      });
    } finally {
      Error.stackTraceLimit = stackTraceLimit;
    }
  }
}
